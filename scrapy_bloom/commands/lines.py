"""URLs and fingerprints on the command line, in files and pipes, for the sub-commands on pages."""

from __future__ import annotations

import io
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter
from scrapy_bloom.commands.context import Context, add_key
from scrapy_bloom.commands.local_target import waiting_in
from scrapy_bloom.commands.output import Output
from scrapy_bloom.commands.project import SCHEMES, Project
from scrapy_bloom.commands.target import Marks, Target
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.local.job import SEEN
from scrapy_bloom.local.scrapys import read_seen
from scrapy_bloom.options import in_arguments

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


class SetInRedis:
    """A set in Redis that another program has made, as a stream of lines.

    :param url: of the server, with ``#`` and the key behind it.
    :raises StateError: if there is no set.
    """

    def __init__(self, url: str, project: Project) -> None:
        address, _, key = url.partition("#")
        self._place, self._key = project.in_redis(address, {}, key, in_arguments), key
        with self._place.link() as link:
            kind = link.client.type(key).decode()
            if kind != "set":
                raise StateError(f"key {key}: found {kind}, expected a set of fingerprints.")
            found = link.client.smembers(key)
        self._members = iter(found)

    def queue(self) -> str:
        """Return the queue of the same crawl if requests wait in it; else an empty text."""
        key = f"{self._key.removesuffix(':dupefilter')}:requests"
        with self._place.link() as link:
            return f"key {key}" if link.client.type(key) in (b"zset", b"list") else ""

    def read(self, _size: int) -> bytes:
        """Return some of its members, one a line; nothing after the last one."""
        return b"".join(member + b"\n" for member in islice(self._members, _AT_ONCE))


@dataclass
class Lines:
    """Reads lines and makes fingerprints of them. Empty lines do not count.

    :param fingerprinter: makes the fingerprints of URLs.
    :param only_fingerprints: whether no line is a URL. Else hexadecimal digits are told from URLs.
    :param strict: whether the first bad line is an error.
    :param seen: whether the file is a ``requests.seen``. Its binary form is told by its first byte.

    Attributes:
        read: how many lines were read.
        bad: how many of them were bad.
        shown: the first of the bad ones.
    """

    fingerprinter: CanonicalFingerprinter
    only_fingerprints: bool = False
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
            for fingerprints in read_seen(chunks):
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
        if self.only_fingerprints:
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


def add_pages(parser: ArgumentParser) -> None:
    """Add the arguments that name a filter and pages."""
    parser.add_argument(
        "pages",
        metavar="[TARGET] URL",
        nargs="*",
        help="the filter, and URLs; - for those on standard input, one a line",
    )
    add_key(parser)
    parser.add_argument(
        "--fingerprint", action="store_true", help="fingerprints in hexadecimal, no URLs"
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="read URLs or fingerprints, one a line, a requests.seen, or a set: redis://HOST#KEY",
    )
    parser.add_argument("--strict", action="store_true", help="stop at the first bad line")


def split(args: Namespace) -> tuple[str | None, list[str]]:
    """Return the target, None for that of the project, and the pages."""
    first, *rest = args.pages or [""]
    if not first or first == "-" or _is_page(first, hexadecimal=args.fingerprint):
        return None, [one for one in args.pages if one]
    return first, rest


def lines_of(args: Namespace, fingerprinter: CanonicalFingerprinter) -> Lines:
    """Return what reads the pages."""
    return Lines(
        fingerprinter,
        only_fingerprints=args.fingerprint,
        strict=args.strict,
        seen=Path(args.file or "").name == SEEN,
    )


@contextmanager
def opened(args: Namespace, pages: list[str], context: Context) -> Iterator[BinaryIO]:
    """Open the pages as one stream of lines."""
    with ExitStack() as stack:
        if "-" in pages and pages != ["-"]:
            raise SettingError("give URLs, or - for those on standard input, not both")
        if args.file and pages:
            raise SettingError("give URLs or a --file with some, not both")
        if (args.file or "").startswith(SCHEMES):
            if not args.fingerprint:
                raise SettingError(
                    f"{args.file.partition('#')[2]}: a set in Redis has fingerprints. scrapy-redis"
                    f" makes them in a way of its own, and then they mean nothing to this filter."
                    f" --fingerprint takes them as they are"
                )
            yield cast("BinaryIO", SetInRedis(args.file, context.project))
        elif args.file:
            yield stack.enter_context(context.stream(args.file))
        elif pages == ["-"]:
            yield stack.enter_context(context.stream("-"))
        elif not pages:
            raise SettingError("give URLs, a --file with some, or - for standard input")
        else:
            yield io.BytesIO("\n".join(pages).encode())


@dataclass(frozen=True)
class Counted:
    """What was done to pages.

    Attributes:
        known: how many the filter had.
        unknown: how many it had not.
        bad: how many lines were bad, and so left out.
    """

    known: int
    unknown: int
    bad: int


def on_each(
    args: Namespace,
    context: Context,
    what: str,
    do: Callable[[Marks, Sequence[bytes]], list[bool]],
    *,
    make: bool = False,
) -> Counted:
    """Open a filter to add to it, do something to all pages, and tell which lines were bad.

    :param what: what is done, for the progress bar.
    :param do: does it to a batch; returns for each page whether the filter had it.
    :param make: whether to make a filter where there is none.
    """
    where, pages = split(args)
    target = context.target(where, args.key)
    known = unknown = 0
    with (
        opened(args, pages, context) as stream,
        target.changing(context.project.new if make else None) as marks,
    ):
        lines = lines_of(args, context.project.fingerprinter_for(marks.identity)[0])
        with context.output.progress(what, None, "pages") as told:
            for batch in lines.of_stream(stream):
                if make and not known + unknown and (lines.seen or isinstance(stream, SetInRedis)):
                    _check_marks(args.file or "-", stream, target)
                found = do(marks, batch.fingerprints)
                known += sum(found)
                unknown += len(found) - sum(found)
                told(len(found))
    tell_bad(lines, context.output)
    return Counted(known, unknown, lines.bad)


def tell_bad(lines: Lines, output: Output) -> None:
    """Tell which lines were bad."""
    for bad in lines.shown:
        output.note(f"line {bad.number:,}: {bad.text!r}: {bad.reason}")
    if lines.bad:
        output.note(f"{lines.bad:,} of {lines.read:,} lines were bad and left out")


def _is_page(text: str, *, hexadecimal: bool) -> bool:
    if text.startswith(SCHEMES) or Path(text).exists():
        return False
    return "://" in text or (hexadecimal and _HEX.fullmatch(text) is not None)


def _check_marks(source: str, stream: object, target: Target) -> None:
    """Refuse the marks of a crawl where requests wait: all of their pages would count as seen.

    :param source: what the marks come from, as the user has written it.
    :param target: where the marks would go.
    :raises SettingError: if requests wait there, or in the queue of that crawl.
    """
    if isinstance(stream, SetInRedis):
        queue = stream.queue()
    else:
        queue = waiting_in(Path(source).parent) if source != "-" else ""
    if queue := queue or target.requests_waiting():
        raise SettingError(
            f"requests wait in {queue}. With these marks and without those requests all of their"
            f" pages would count as seen, and never be fetched. Nothing was changed. A crawl with"
            f" our scheduler takes over a stopped job with its marks; 'scrapy bloom copy' takes a"
            f" crawl of scrapy-redis, its queue first"
        )
