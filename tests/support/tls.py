"""TLS on loopback, with a certificate that is made for it."""

import asyncio
import datetime as dt
import ssl
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def tls_context():
    """Return a context with a certificate of its own making; Scrapy does not check whose it is."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "site.example")])
    now = dt.datetime.now(dt.timezone.utc)
    names = [x509.DNSName("site.example"), x509.DNSName("*.site.example")]
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "pem")
        file.write_bytes(key.private_bytes(pem, *plain) + certificate.public_bytes(pem))
        context.load_cert_chain(file)
    return context


class TlsFront:
    """Speaks TLS for a server that cannot, as a context manager.

    Attributes:
        port: where it listens.
    """

    def __init__(self, port):
        self._upstream = port

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._run(
            asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls_context())
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *exc_info):
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _serve(self, client, to_client):
        server, to_server = await asyncio.open_connection("127.0.0.1", self._upstream)
        try:
            await asyncio.gather(_pump(client, to_server), _pump(server, to_client))
        finally:
            to_client.transport.abort()
            to_server.transport.abort()

    async def _stop(self):
        self._server.close()
        mine = asyncio.current_task()
        rest = [task for task in asyncio.all_tasks() if task is not mine]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


async def _pump(source, sink):
    with suppress(OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
        sink.close()
