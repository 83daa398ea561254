"""A Redis Cluster of three real servers, made by hand."""

from contextlib import ExitStack

import redis
from testbed.localredis import LocalRedis

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
            clients = [stack.enter_context(node).client() for node in self.nodes]
            first = self.nodes[0]
            for number, client in enumerate(clients[:3]):
                slots = range(number * _SLOTS // 3, (number + 1) * _SLOTS // 3)
                client.execute_command("CLUSTER", "ADDSLOTS", *slots)
            for client in clients:
                client.execute_command("CLUSTER", "MEET", first.HOST, first.port)
            for client in clients:
                until(lambda client=client: self._ready(client))
            for replica in clients[3:]:
                _replicate(replica, clients[2])
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info):
        self._stack.close()

    def _ready(self, client):
        info = client.execute_command("CLUSTER", "INFO")
        known = b"cluster_known_nodes:%d" % len(self.nodes)
        return b"cluster_state:ok" in info and known in info


def _replicate(replica, primary):
    name = primary.execute_command("CLUSTER", "MYID")

    def accepted():
        try:
            return replica.execute_command("CLUSTER", "REPLICATE", name)
        except redis.ResponseError:  # it does not know the other node yet
            return False

    until(accepted)
    until(lambda: replica.info("replication").get("master_link_status") == "up")
