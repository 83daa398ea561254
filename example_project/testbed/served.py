"""Servers on loopback, in threads of the process that opens them."""

from __future__ import annotations

import sys
import threading
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class _Server(ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128  # who does not find room in it tries again a second later
    site: Served

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client was killed
            super().handle_error(request, client_address)


class Served:
    """A server, as a context manager.

    Attributes:
        handler: serves one connection; knows this object as ``self.server.site``.
        port: where it listens.
    """

    HOST = "127.0.0.1"
    handler: type[BaseRequestHandler]

    def __enter__(self) -> Self:
        self._server = _Server((self.HOST, 0), self.handler)
        self._server.site = self
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Quiet:
    """A handler of web requests that logs nothing: a crawl has a log of its own."""

    server: Any

    def log_message(self, *args: object) -> None:
        """Log nothing."""
