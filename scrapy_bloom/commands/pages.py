"""URLs and fingerprints on the command line, in files and pipes, for the verbs on pages."""

from __future__ import annotations

import io
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter
from scrapy_bloom.commands.local_target import waiting_in
from scrapy_bloom.commands.output import Output
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.target import SCHEMES, Target, add_spider, target_of
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.local.job import SEEN
from scrapy_bloom.local.scrapys import read_seen

_CHUNK: Final = 1 << 20
_LONGEST: Final = 1 << 16  # bytes of a line
_SHOWN: Final = 20  # bad lines that are told in words
_DIGEST: Final = 20  # bytes of a SHA-1
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2}){8,}")


class Page(NamedTuple):
    """A page.

    Attributes:
        text: the URL or the fingerprint as it was given.
        fingerprint: its fingerprint.
        canonical: the URL that the fingerprint is made from; empty if the fingerprint was given.
    """

    text: str
    fingerprint: bytes
    canonical: str = ""


class Lines:
    """Reads lines, each a URL or a fingerprint in hexadecimal; or a ``requests.seen``.

    Empty lines do not count. Bad ones are reported and left out.

    :param stream: the lines.
    :param fingerprinter: makes the fingerprints of URLs.

    Attributes:
        seen: whether it is a ``requests.seen``: by its name, or the first byte of its binary form.
        read: how many lines were read.
        bad: how many of them were bad.
    """

    def __init__(
        self, stream: BinaryIO, fingerprinter: CanonicalFingerprinter, output: Output
    ) -> None:
        self._make, self._output = fingerprinter.resolve_url, output
        self._digests = fingerprinter.digests
        self.read = self.bad = 0
        # read1 gives what is there: a pipe that is fed slowly is answered at once.
        read = getattr(stream, "read1", stream.read)
        chunks = iter(lambda: read(_CHUNK), b"")
        first = next(chunks, b"")
        self._chunks = chain([first] if first else [], chunks)
        name = Path(str(getattr(stream, "name", ""))).name
        self.seen = name == SEEN or first.startswith(b"\0")  # of a length: no text begins so

    def batches(self) -> Iterator[list[Page]]:
        """Yield the pages, about a MiB of lines at a time."""
        if self.seen:
            for fingerprints in read_seen(self._chunks):
                yield [Page(fingerprint.hex(), fingerprint) for fingerprint in fingerprints]
            return
        rest = b""
        for data in self._chunks:
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            if len(rest) > _LONGEST:
                lines.append(rest[:_LONGEST])
                rest = b""
            yield [*self._pages(lines)]
        if rest:
            yield [*self._pages([rest])]
        if self.bad:
            self._output.note(f"{self.bad:,} of {self.read:,} lines were bad and left out")

    def _pages(self, lines: list[bytes]) -> Iterator[Page]:
        for line in lines:
            self.read += 1
            try:
                if text := line.decode().strip():
                    yield self._page(text)
            except ValueError as error:
                self.bad += 1
                if self.bad <= _SHOWN:
                    reason = "not UTF-8" if isinstance(error, UnicodeError) else str(error)
                    text = line.decode(errors="replace").strip()[:100]
                    self._output.note(f"line {self.read:,}: {text!r}: {reason}")

    def _page(self, text: str) -> Page:
        if not _HEX.fullmatch(text):
            return Page(text, *self._make(text))
        fingerprint = bytes.fromhex(text)
        if self._digests and len(fingerprint) != _DIGEST:
            raise ValueError(f"expected {2 * _DIGEST} hexadecimal digits, not {len(text)}")
        return Page(text, fingerprint)


class Changed(NamedTuple):
    """What was done to pages.

    Attributes:
        known: how many the filter had.
        unknown: how many it had not.
        bad: how many lines were bad, and so left out.
    """

    known: int
    unknown: int
    bad: int


def add_pages(parser: ArgumentParser) -> None:
    """Add the arguments that name a filter and pages."""
    parser.add_argument(
        "pages",
        metavar="[TARGET] URL",
        nargs="*",
        help="the filter, and URLs or fingerprints in hexadecimal; - for those on standard input,"
        " one a line",
    )
    add_spider(parser)
    parser.add_argument("--file", metavar="FILE", help="read them there, or a requests.seen")


def change(args: Namespace, project: Project, output: Output, *, forget: bool) -> Changed:
    """Add all pages to a filter, or forget them.

    :raises SettingError: if that would suppress pages whose requests wait.
    """
    known = unknown = 0
    with (
        opened(args, project) as (target, stream),
        target.changing(project, forget=forget) as (identity, do),
    ):
        lines = Lines(stream, project.fingerprinter_for(identity)[0], output)
        if lines.seen and not forget:
            _check_marks(args.file or "", target)
        for pages in lines.batches():
            found = do([page.fingerprint for page in pages])
            known += sum(found)
            unknown += len(found) - sum(found)
    return Changed(known, unknown, lines.bad)


@contextmanager
def opened(args: Namespace, project: Project) -> Iterator[tuple[Target, BinaryIO]]:
    """Yield the filter that the arguments name, and all pages as one stream of lines."""
    pages: list[str] = args.pages
    where = pages.pop(0) if pages and pages[0] != "-" and not _is_page(pages[0]) else None
    if "-" in pages and pages != ["-"]:
        raise SettingError("give URLs, or - for those on standard input, not both")
    if args.file and pages:
        raise SettingError("give URLs or a --file with some, not both")
    if not (args.file or pages):
        raise SettingError("give URLs, a --file with some, or - for standard input")
    target = target_of(project, where)
    if pages == ["-"]:
        yield target, sys.stdin.buffer
    elif pages:
        yield target, io.BytesIO("\n".join(pages).encode())
    else:
        try:
            file = Path(args.file).open("rb")  # noqa: SIM115 - so that only opening it is explained
        except OSError as error:
            raise StateError(
                f"{args.file}: {error.strerror}. Give a file that this user can read, or - for"
                f" standard input."
            ) from error
        with file:
            yield target, file


def _is_page(text: str) -> bool:
    if text.startswith(SCHEMES) or Path(text).exists():
        return False
    return "://" in text or _HEX.fullmatch(text) is not None


def _check_marks(source: str, target: Target) -> None:
    """Refuse the marks of a crawl where requests wait: all of their pages would count as seen.

    :param source: the file that the marks come from; empty for standard input.
    :param target: where the marks would go.
    """
    queue = waiting_in(Path(source).parent) if source else ""
    if queue := queue or target.requests_waiting():
        raise SettingError(
            f"requests wait in {queue}. With these marks and without those requests all of their"
            f" pages would count as seen, and never be fetched. Nothing was changed. A crawl with"
            f" our scheduler takes over a stopped job with its marks"
        )
