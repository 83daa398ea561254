"""A TCP proxy that does to a connection what networks do."""

import math
import socket
import ssl
import struct
import threading
import time
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from socketserver import BaseRequestHandler

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from testbed.served import Served

from support.waiting import PATIENCE

MORE_FAULTS = (
    *("reset", "drop reply", "stall", "stall reply"),
    *("late", "garble reply", "half reply", "twice"),
)


class _Connection(BaseRequestHandler):
    def handle(self):
        self.proxy, self.fault, self.answered = self.server.site, None, threading.Event()
        try:
            self.upstream = socket.create_connection((self.proxy.HOST, self.proxy.upstream))
        except OSError:
            _reset(self.request)
            return
        for end in (self.request, self.upstream):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.proxy.connections.append(self)
        replies = threading.Thread(target=self._carry, args=(self._replies,), daemon=True)
        replies.start()
        self._carry(self._requests)

    def reset(self):
        _reset(self.request)
        if self.fault != "late":
            _reset(self.upstream)

    def _carry(self, part):
        with suppress(OSError):
            part()
        self.reset()

    def _requests(self):
        while request := self.request.recv(1 << 20):
            fault = self.proxy.fault(request)
            self.fault = fault or self.fault
            time.sleep(len(request) / self.proxy.rate)
            if self.fault == "late":
                self.proxy.late.append((self, request))
            if self.fault in ("late", "reset"):
                return
            if self.fault != "stall":
                self.upstream.sendall(request)
            if fault == "twice":
                with socket.create_connection(self.upstream.getpeername()) as another:
                    another.sendall(request)
                    assert another.recv(1 << 20)
                assert self.answered.wait(PATIENCE)
                return

    def _replies(self):
        while reply := self.upstream.recv(1 << 20):
            if self.fault in ("late", "twice"):
                self.answered.set()
            if self.fault == "late":
                _reset(self.upstream)
            if self.fault == "half reply":
                self.request.sendall(reply[: len(reply) // 2])
            if self.fault in ("late", "half reply", "drop reply"):
                return
            if self.fault == "garble reply":
                self.request.sendall(b":no number\r\n")
            elif self.fault is None:
                self._reply(reply)

    def _reply(self, reply):
        size = max(1, int(min(self.proxy.rate / 80, 1 << 20)))
        for start in range(0, len(reply), size):
            part = reply[start : start + size]
            time.sleep(len(part) / self.proxy.rate)
            self.request.sendall(part)


class Proxy(Served):
    """Stands before a server on loopback, as a context manager.

    `rate`: bytes that a connection carries in a second, to and fro.
    `faults`: number of a counted request, from 1, to what happens to it; counted are requests that
    contain `counted`.

    - reset: the request is not delivered, the connection is reset;
    - drop reply: it is delivered, the connection is reset instead of the reply;
    - stall: it is not delivered, the connection stays;
    - stall reply: it is delivered, no reply comes, the connection stays;
    - half reply: it is delivered, the connection is reset in the middle of the reply;
    - twice: it is delivered twice, the connection is reset instead of the replies;
    - garble reply: it is delivered, the reply is one that no client can read;
    - late: the connection is reset, and the request delivered when `deliver` is called.
    """

    handler = _Connection
    rate = math.inf

    def __init__(self, port, *, counted=b""):
        self.upstream, self.counted = port, counted
        self.faults, self.requests, self.connections, self.late = {}, 0, [], []
        self._lock = threading.Lock()

    def __exit__(self, *exc_info):
        super().__exit__()
        self.cut()
        for connection, _ in self.late:
            _reset(connection.upstream)

    @property
    def url(self):
        return f"redis://{self.HOST}:{self.port}/0"

    def cut(self):
        for connection in [*self.connections]:
            connection.reset()

    @contextmanager
    def down(self):
        """Reset all connections, and let none through in the block."""
        upstream, self.upstream = self.upstream, 1
        self.cut()
        yield
        self.upstream = upstream

    def deliver(self):
        """Carry out the requests that were held back."""
        late, self.late = self.late, []
        for connection, request in late:
            connection.upstream.sendall(request)
            assert connection.answered.wait(PATIENCE)

    def fault(self, request):
        """Count a request; return what shall happen to it."""
        if self.counted not in request:
            return None
        with self._lock:
            self.requests += 1
            return self.faults.get(self.requests)


class _Repeating(BaseRequestHandler):
    def handle(self):
        with suppress(OSError):
            while self.request.recv(1 << 20):
                self.request.sendall(self.server.site.reply)


class Answering(Served):
    """Gives the same answer to everything, as a context manager that returns its port."""

    handler = _Repeating

    def __init__(self, reply):
        self.reply = reply

    def __enter__(self):
        return super().__enter__().port


class _Encrypted(BaseRequestHandler):
    def handle(self):
        with suppress(OSError):
            self.server.site.context.wrap_socket(self.request, server_side=True)


class SelfSigned(Answering):
    """Speaks only TLS, with a certificate of its own, which it writes to a file."""

    handler = _Encrypted

    def __init__(self, file):
        key, name, now = Ed25519PrivateKey.generate(), x509.Name([]), datetime.now(timezone.utc)
        until = now + timedelta(days=1)
        builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, until)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file.write_bytes(builder.sign(key, None).public_bytes(Encoding.PEM) + private)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(file)


def _reset(end):
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RD)
    end.close()
