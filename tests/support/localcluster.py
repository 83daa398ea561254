"""A Redis Cluster of three real servers, made by hand."""

from __future__ import annotations

from contextlib import ExitStack

import redis

from support.localredis import LocalRedis
from support.waiting import until

_SLOTS = 16384


class LocalCluster:
    """Three primaries, as a context manager; `nodes` are the servers.

    With `replica` there is a fourth node, which takes the place of the third when that is killed.
    """

    def __init__(self, *, replica=False):
        arguments = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
        full = ("--cluster-require-full-coverage", "no")
        self.nodes = [LocalRedis(*arguments, *full) for _ in range(3 + replica)]

    @property
    def url(self):
        return self.nodes[0].url.removesuffix("/0")

    def __enter__(self):
        with ExitStack() as stack:
            for node in self.nodes:
                stack.enter_context(node)
            first = self.nodes[0]
            for number, node in enumerate(self.nodes):
                client = node.client()
                if number < 3:
                    bounds = (number * _SLOTS // 3, (number + 1) * _SLOTS // 3)
                    client.execute_command("CLUSTER", "ADDSLOTS", *range(*bounds))
                client.execute_command("CLUSTER", "MEET", first.HOST, first.port)
            for node in self.nodes:
                until(lambda node=node: self._ready(node.client()))
            if len(self.nodes) > 3:
                replica = self.nodes[3].client()
                third = self.name(self.nodes[2])
                until(lambda: _succeeds(replica, "CLUSTER", "REPLICATE", third))
                until(lambda: replica.info("replication").get("master_link_status") == "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info):
        self._stack.close()

    def name(self, node):
        """Return the name by which the cluster knows a node."""
        return node.client().execute_command("CLUSTER", "MYID").decode()

    def _ready(self, client):
        info = client.execute_command("CLUSTER", "INFO")
        known = b"cluster_known_nodes:%d" % len(self.nodes)
        return b"cluster_state:ok" in info and known in info


def _succeeds(client, *command):
    try:
        client.execute_command(*command)
    except redis.ResponseError:  # it does not know the other node yet
        return False
    return True
