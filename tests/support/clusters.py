"""A Redis Cluster of three real servers, made by hand, and a Redis Sentinel."""

from contextlib import ExitStack
from pathlib import Path

import redis
from testbed.localredis import LocalRedis

from support.waiting import until

_SLOTS = 16384


class LocalCluster:
    """Three primaries, as a context manager; `nodes` are the servers.

    With `replica` there is a fourth node, which takes the place of the third when that is killed.
    """

    def __init__(self, *, replica=False):
        patience = "1000" if replica else "15000"  # no node of a busy machine counts as killed
        arguments = ("--cluster-enabled", "yes", "--cluster-node-timeout", patience)
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


class LocalSentinel(LocalRedis):
    """A sentinel as a context manager. The service is called `crawl`.

    Args:
        server: what it watches.
        password: of that server.
        own: what the sentinel asks for.
    """

    def __init__(self, server, *, password="", own=""):
        super().__init__()
        lines = [f"sentinel monitor crawl {server.HOST} {server.port} 1"]
        lines += [f"sentinel auth-pass crawl {password}"] if password else []
        lines += [f"requirepass {own}"] if own else []
        self._own = own
        file = Path(self._folder.name, "sentinel.conf")
        file.write_text("\n".join(lines) + "\n")
        self._first, self._arguments = (str(file),), ("--sentinel",)

    def start(self):
        """Start it, and wait until it knows the server."""
        super().start()
        client = self.client(password=self._own or None)
        until(lambda: client.execute_command("SENTINEL", "get-master-addr-by-name", "crawl"))
        client.close()
