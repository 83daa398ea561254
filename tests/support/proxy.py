"""A TCP proxy that does to a connection what networks do."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import contextmanager, suppress

FAULTS = ("reset", "drop reply", "stall", "stall reply", "late", "garble reply")
MORE_FAULTS = (*FAULTS, "half reply", "twice")


class Proxy:
    """Stands before a server on loopback, as a context manager.

    `delay`: seconds added to a round trip. `drip`: seconds between two bytes of a reply. `rate`:
    bytes of replies that come in a second, 0 for all at once. `faults`:
    number of a counted request, from 1, to what happens to it; counted are requests that contain
    `counted`.

    - reset: the request is not delivered, the connection is reset;
    - drop reply: it is delivered, the connection is reset instead of the reply;
    - stall: it is not delivered, the connection stays;
    - stall reply: it is delivered, no reply comes, the connection stays;
    - half reply: it is delivered, the connection is reset in the middle of the reply;
    - twice: it is delivered twice, and the second reply goes nowhere;
    - garble reply: it is delivered, the reply is one that no client can read;
    - late: the connection is reset, and the request delivered when `deliver` is called.
    """

    GARBLED = b":no number\r\n"

    def __init__(self, port, *, delay=0.0, counted=b""):
        self.upstream = port
        self.delay = delay
        self.drip = self.rate = 0.0
        self.counted = counted
        self.faults = {}
        self.requests = 0
        self._late = []
        self._open = set()
        self._lock = threading.Lock()

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc_info):
        with suppress(OSError):  # wakes up accept()
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for connection, _ in self._late:
            _reset(connection.server)

    def cut(self):
        """Reset all connections."""
        for connection in list(self._open):
            connection.reset()

    @contextmanager
    def down(self):
        """Reset all connections, and let none through in the block."""
        upstream, self.upstream = self.upstream, 1
        self.cut()
        yield
        self.upstream = upstream

    def deliver(self):
        """Carry out the requests that were held back; return how many there were."""
        late, self._late = self._late, []
        for connection, request in late:
            connection.server.sendall(request)
            assert connection.answered.wait(10)
        return len(late)

    def fault(self, request):
        """Count a request; return what shall happen to it."""
        if self.counted not in request:
            return None
        with self._lock:
            self.requests += 1
            return self.faults.get(self.requests)

    def hold(self, connection, request):
        self._late.append((connection, request))

    def send(self, request):
        """Deliver a request on a connection of its own, and wait for the reply."""
        with socket.create_connection(("127.0.0.1", self.upstream)) as server:
            server.sendall(request)
            assert server.recv(1 << 20)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.upstream))
            except OSError:
                _reset(client)
                continue
            connection = _Connection(self, client, server)
            self._open.add(connection)
            for work in (connection.requests, connection.replies):
                threading.Thread(target=work, daemon=True).start()


class Answering:
    """Gives the same answer to everything, as a context manager that returns its port."""

    def __init__(self, reply):
        self._reply = reply

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()
        return self._listener.getsockname()[1]

    def __exit__(self, *exc_info):
        with suppress(OSError):  # wakes up accept()
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client):
        with suppress(OSError), client:
            while client.recv(1 << 20):
                client.sendall(self._reply)


class _Connection:
    def __init__(self, proxy, client, server):
        self.proxy = proxy
        self.client = client
        self.server = server
        self.fault = None
        self.answered = threading.Event()
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def reset(self):
        _reset(self.client)
        if self.fault != "late":
            _reset(self.server)

    def requests(self):
        with suppress(OSError):
            while request := self.client.recv(1 << 20):
                self.fault = self.proxy.fault(request) or self.fault
                if self.proxy.delay:
                    time.sleep(self.proxy.delay)
                if self.fault == "reset":
                    break
                if self.fault == "late":
                    self.proxy.hold(self, request)
                    break
                if self.fault != "stall":
                    self.server.sendall(request)
                if self.fault == "twice":
                    self.proxy.send(request)
                    self.fault = None
        self.reset()

    def replies(self):
        with suppress(OSError):
            while reply := self.server.recv(1 << 20):
                if self.fault == "late":
                    self.answered.set()
                    _reset(self.server)
                    return
                if self.fault == "drop reply":
                    break
                if self.fault == "half reply":
                    self.client.sendall(reply[: len(reply) // 2])
                    break
                if self.fault == "garble reply":
                    self.client.sendall(self.proxy.GARBLED)
                    continue
                if self.fault is None:
                    self._reply(reply)
        self.reset()

    def _reply(self, reply):
        if self.proxy.rate:
            for start in range(0, len(reply), 50_000):
                part = reply[start : start + 50_000]
                time.sleep(len(part) / self.proxy.rate)
                self.client.sendall(part)
            return
        if not self.proxy.drip:
            self.client.sendall(reply)
            return
        for byte in reply:
            self.client.sendall(bytes([byte]))
            time.sleep(self.proxy.drip)


def _reset(end):
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RD)
    end.close()
