"""A Redis Cluster of three real servers, made by hand."""

from __future__ import annotations

from contextlib import ExitStack

from support.localredis import LocalRedis
from support.waiting import until

_SLOTS = 16384


class LocalCluster:
    """Three primaries, as a context manager; `nodes` are the servers."""

    def __init__(self):
        arguments = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
        full = ("--cluster-require-full-coverage", "no")
        self.nodes = [LocalRedis(*arguments, *full) for _ in range(3)]

    @property
    def url(self):
        return self.nodes[0].url.removesuffix("/0")

    def __enter__(self):
        with ExitStack() as stack:
            for node in self.nodes:
                stack.enter_context(node)
            first = self.nodes[0]
            for number, node in enumerate(self.nodes):
                bounds = (number * _SLOTS // 3, (number + 1) * _SLOTS // 3)
                client = node.client()
                client.execute_command("CLUSTER", "ADDSLOTS", *range(*bounds))
                client.execute_command("CLUSTER", "MEET", first.HOST, first.port)
            for node in self.nodes:
                until(lambda node=node: _ready(node.client()))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info):
        self._stack.close()


def _ready(client):
    info = client.execute_command("CLUSTER", "INFO")
    return b"cluster_state:ok" in info and b"cluster_known_nodes:3" in info
