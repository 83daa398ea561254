"""Lines of URLs or fingerprints, from files and pipes: quick, and with word of the bad ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import BinaryIO, Final, Literal, NamedTuple

from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.storage import seen_file

Kind = Literal["auto", "fingerprints"]
"""What lines hold; ``auto`` tells hexadecimal fingerprints from URLs, line by line."""

_CHUNK: Final = 1 << 20
_LONGEST: Final = 1 << 16  # bytes of a line
_AT_ONCE: Final = 10_000  # members of a set
_SHOWN: Final = 20  # bad lines that are told in words
_DIGEST: Final = 20  # bytes of a SHA-1
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2}){8,}")


class BadLine(NamedTuple):
    """A line that is neither a URL nor a fingerprint.

    Attributes:
        number: its number, from 1.
        text: its beginning.
        reason: what is wrong with it.
    """

    number: int
    text: str
    reason: str


@dataclass(frozen=True)
class Batch:
    """Some lines in order, without the bad ones.

    Attributes:
        texts: the lines.
        fingerprints: their fingerprints.
        canonical: for URLs the URL that the fingerprint is made from, else an empty text.
    """

    texts: Sequence[str]
    fingerprints: Sequence[bytes]
    canonical: Sequence[str]


def fingerprints_of(
    fingerprinter: CanonicalFingerprinter, urls: Iterable[str], fingerprints: Iterable[bytes]
) -> list[bytes]:
    """Return the fingerprints of URLs, then those that are given.

    :raises ValueError: if Scrapy cannot make a request for a URL.
    """
    return [*map(fingerprinter.of_url, urls), *fingerprints]


class SetInRedis:
    """A set in Redis that another program has made, as a stream of lines.

    :param url: of the server, with ``#`` and the key behind it.
    :raises StateError: if there is no set.
    """

    def __init__(self, url: str) -> None:
        # Imported only here: redis is an extra.
        from scrapy_bloom.redis.connection import Target as Server  # noqa: PLC0415
        from scrapy_bloom.redis.foreign import ForeignKey  # noqa: PLC0415

        address, _, name = url.partition("#")
        self._key = ForeignKey(Server(address), name, timeout=10.0)
        if (kind := self._key.kind()) != "set":
            raise StateError(f"key {name}: found {kind}, expected a set of fingerprints.")
        self._members = self._key.members()

    def queue(self) -> str:
        """Return the queue of the same crawl if requests wait in it; else an empty text."""
        crawl = self._key.key.removesuffix(":dupefilter")
        queue = self._key.beside(f"{crawl}:requests")
        try:
            found = queue.kind() in ("zset", "list") and queue.size()
            return f"key {queue.key}" if found else ""
        finally:
            queue.close()

    def read(self, _size: int) -> bytes:
        """Return some of its members, one a line; nothing after the last one."""
        return b"".join(member + b"\n" for member in islice(self._members, _AT_ONCE))


@dataclass
class Lines:
    """Reads lines and makes fingerprints of them. Empty lines do not count.

    :param fingerprinter: makes the fingerprints of URLs.
    :param kind: what the lines hold.
    :param strict: whether the first bad line is an error.
    :param seen: whether the file is a ``requests.seen``. Its binary form is told by its first byte.

    Attributes:
        read: how many lines were read.
        bad: how many of them were bad.
        shown: the first of the bad ones.
    """

    fingerprinter: CanonicalFingerprinter
    kind: Kind = "auto"
    strict: bool = False
    seen: bool = False
    read: int = 0
    bad: int = 0
    shown: list[BadLine] = field(default_factory=list)

    def of_stream(self, stream: BinaryIO) -> Iterator[Batch]:
        """Yield the lines of a stream, about a MiB at a time, or the marks of a ``requests.seen``.

        :raises SettingError: at the first bad line, if `strict`.
        """
        rest = b""
        # read1 gives what is there: a pipe that is fed slowly is answered at once.
        read = getattr(stream, "read1", stream.read)
        chunks = iter(lambda: read(_CHUNK), b"")
        first = next(chunks, b"")
        chunks = chain([first] if first else [], chunks)
        self.seen = self.seen or first.startswith(b"\0")  # of a length: no text begins so
        if self.seen:
            for fingerprints in seen_file.read_batches(chunks):
                self.read += len(fingerprints)
                texts = [fingerprint.hex() for fingerprint in fingerprints]
                yield Batch(texts, fingerprints, [""] * len(texts))
            return
        for data in chunks:
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            if len(rest) > _LONGEST:
                lines.append(rest[:_LONGEST])
                rest = b""
            yield self.of_lines(lines)
        if rest:
            yield self.of_lines([rest])

    def of_lines(self, lines: Iterable[bytes | str]) -> Batch:
        """Return the fingerprints of some lines.

        :raises SettingError: at the first bad line, if `strict`.
        """
        texts: list[str] = []
        fingerprints: list[bytes] = []
        canonical: list[str] = []
        make = self._maker()
        number = self.read
        for line in lines:
            number += 1
            try:
                text = (line.decode() if isinstance(line, bytes) else line).strip()
                if not text:
                    continue
                fingerprint, url = make(text)
                fingerprints.append(fingerprint)
                canonical.append(url)
                texts.append(text)
            except ValueError as error:
                self._note(number, line, error)
        self.read = number
        return Batch(texts, fingerprints, canonical)

    def _maker(self) -> Callable[[str], tuple[bytes, str]]:
        of_url = self.fingerprinter.resolve_url
        if self.kind == "fingerprints":
            return lambda text: (self._read(text), "")
        is_hex = _HEX.fullmatch
        return lambda text: (bytes.fromhex(text), "") if is_hex(text) else of_url(text)

    def _read(self, text: str) -> bytes:
        try:
            fingerprint = bytes.fromhex(text)
        except ValueError:
            raise ValueError("not a fingerprint: expected hexadecimal digits") from None
        if self.fingerprinter.digests and len(fingerprint) != _DIGEST:
            raise ValueError(
                f"not a fingerprint: expected {2 * _DIGEST} hexadecimal digits, not {len(text)}"
            )
        return fingerprint

    def _note(self, number: int, line: bytes | str, error: ValueError) -> None:
        text = line.decode(errors="replace") if isinstance(line, bytes) else line
        reason = "not UTF-8" if isinstance(error, UnicodeError) else str(error)
        bad = BadLine(number, text.strip()[:100], reason)
        if self.strict:
            raise SettingError(f"line {number:,}: {bad.text!r}: {bad.reason.rstrip('.')}.")
        self.bad += 1
        if len(self.shown) < _SHOWN:
            self.shown.append(bad)
