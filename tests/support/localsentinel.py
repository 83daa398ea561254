"""A Redis Sentinel for oneself, which watches one server."""

from __future__ import annotations

from pathlib import Path

from testbed.localredis import LocalRedis

from support.waiting import until


class LocalSentinel(LocalRedis):
    """A sentinel as a context manager. The service is called `crawl`.

    Args:
        server: what it watches.
        password: of that server.
        own: what the sentinel asks for.
    """

    def __init__(self, server: LocalRedis, *, password: str = "", own: str = "") -> None:
        super().__init__()
        lines = [f"sentinel monitor crawl {server.HOST} {server.port} 1"]
        lines += [f"sentinel auth-pass crawl {password}"] if password else []
        lines += [f"requirepass {own}"] if own else []
        self._own = own
        file = Path(self._folder.name, "sentinel.conf")
        file.write_text("\n".join(lines) + "\n")
        self._first, self._arguments = (str(file),), ("--sentinel",)

    def start(self) -> None:
        """Start it, and wait until it knows the server."""
        super().start()
        client = self.client(password=self._own or None)
        until(lambda: client.execute_command("SENTINEL", "get-master-addr-by-name", "crawl"))
        client.close()
