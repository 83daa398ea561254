"""``scrapy bloom contains``, ``add`` and ``forget``: ask a filter about pages, or change it.

Pages are URLs, or fingerprints in hexadecimal, as arguments or one a line on standard input.
"""

from __future__ import annotations

import io
import json
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter
from scrapy_bloom.commands.output import Output, Progress, Table
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.target import SCHEMES, Target, add_spider, target_of
from scrapy_bloom.errors import SettingError
from scrapy_bloom.options import counted

EXAMPLE = "job http://example.com/"

_CHUNK: Final = 1 << 20
_LONGEST: Final = 1 << 16  # bytes of a line
_SHOWN: Final = 20  # bad lines that are told in words
_DIGEST: Final = 20  # bytes of a SHA-1
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2}){8,}")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments that name a filter and pages."""
    parser.add_argument(
        "pages",
        metavar="[TARGET] URL",
        nargs="*",
        help="the filter, and URLs or fingerprints in hexadecimal; - for those on standard input,"
        " one a line",
    )
    add_spider(parser)


def run(args: Namespace, project: Project, output: Output) -> int:
    """Run one of the three."""
    return {"contains": _contains, "add": _add, "forget": _forget}[args.verb](args, project, output)


def _contains(args: Namespace, project: Project, output: Output) -> int:
    """Print for each page whether it is seen or new, as they are read; 0 if all are seen."""
    all_seen, table = True, Table("page", "is", "canonical")
    target, stream = _given(args, project)
    with target.asking() as (identity, contains_many):
        fingerprinter, warning = project.fingerprinter_for(identity)
        if warning:
            output.note(warning)
        lines = Lines(stream, fingerprinter, output)
        for pages in lines.batches():
            seen = contains_many([page.fingerprint for page in pages])
            all_seen = all_seen and all(seen)
            shown = [
                (page, "seen" if there else "new") for page, there in zip(pages, seen, strict=True)
            ]
            rows = [(page.text, word, page.canonical) for page, word in shown]
            answers = map(_as_json, shown) if output.as_json else table.lines(rows)
            sys.stdout.writelines(f"{line}\n" for line in answers)
    return 0 if all_seen and not lines.bad else 1


def _as_json(found: tuple[Page, str]) -> str:
    page, word = found
    return json.dumps({**page._asdict(), "fingerprint": page.fingerprint.hex(), "is": word})


def _add(args: Namespace, project: Project, output: Output) -> int:
    """Mark pages; print how many were new."""
    known, new, bad = _change(args, project, output, forget=False)
    text = f"{counted(new, 'page')} marked; {known:,} marked before"
    output.show({"new": new, "seen": known, "bad": bad}, [text])
    return 1 if bad else 0


def _forget(args: Namespace, project: Project, output: Output) -> int:
    """Let pages through; print how many. Return 1 if the filter has not had one of them."""
    known, unknown, bad = _change(args, project, output, forget=True)
    text = f"{counted(known, 'page')} eligible again; {unknown:,} not in the filter"
    output.show({"forgotten": known, "unknown": unknown, "bad": bad}, [text])
    return 1 if unknown or bad else 0


def _change(
    args: Namespace, project: Project, output: Output, *, forget: bool
) -> tuple[int, int, int]:
    """Add or forget pages; return how many were there, and not, and how many lines were bad."""
    known = unknown = 0
    target, stream = _given(args, project)
    with (
        Progress("pages") as progress,
        target.changing(project, forget=forget) as (identity, change),
    ):
        lines = Lines(stream, project.fingerprinter_for(identity)[0], output)
        for pages in lines.batches():
            found = change([page.fingerprint for page in pages])
            known += sum(found)
            unknown += len(found) - sum(found)
            progress.add(len(found))
    return known, unknown, lines.bad


def _given(args: Namespace, project: Project) -> tuple[Target, BinaryIO]:
    """Return the filter that the arguments name, and all pages as one stream of lines."""
    pages: list[str] = args.pages
    where = pages.pop(0) if pages and pages[0] != "-" and not _is_page(pages[0]) else None
    if not pages or ("-" in pages and len(pages) > 1):
        raise SettingError("expected URLs, or - for those on standard input")
    given = io.BytesIO("".join(f"{page}\n" for page in pages).encode())
    return target_of(project, where), sys.stdin.buffer if pages == ["-"] else given


def _is_page(text: str) -> bool:
    if text.startswith(SCHEMES) or Path(text).exists():
        return False
    return "://" in text or _HEX.fullmatch(text) is not None


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
    """Reads lines, each a page. Empty ones do not count; bad ones are reported and skipped.

    Attributes:
        bad: how many lines were bad.
    """

    def __init__(
        self, stream: BinaryIO, fingerprinter: CanonicalFingerprinter, output: Output
    ) -> None:
        self._make, self._output = fingerprinter.resolve_url, output
        self._digests = fingerprinter.digests
        # read1 gives what is there: a pipe that is fed slowly is answered at once.
        self._read = getattr(stream, "read1", stream.read)
        self._each = "line" if stream is sys.stdin.buffer else "argument"
        self._count = self.bad = 0

    def batches(self) -> Iterator[list[Page]]:
        """Yield the pages, about a MiB of lines at a time."""
        rest = b""
        while data := self._read(_CHUNK):
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            if len(rest) > _LONGEST:
                lines.append(rest[:_LONGEST])
                rest = b""
            yield [*self._pages(lines)]
        yield [*self._pages([rest] if rest else [])]
        if self.bad:
            self._output.note(f"skipped {self.bad:,} of {counted(self._count, self._each)}")

    def _pages(self, lines: list[bytes]) -> Iterator[Page]:
        for line in lines:
            self._count += 1
            try:
                if text := line.decode().strip():
                    yield self._page(text)
            except ValueError as error:
                self.bad += 1
                if self.bad <= _SHOWN:
                    reason = "not UTF-8" if isinstance(error, UnicodeError) else str(error)
                    text = line.decode(errors="replace").strip()[:100]
                    self._output.note(f"{self._each} {self._count:,}: {text!r}: {reason}")

    def _page(self, text: str) -> Page:
        if not _HEX.fullmatch(text):
            return Page(text, *self._make(text))
        fingerprint = bytes.fromhex(text)
        if self._digests and len(fingerprint) != _DIGEST:
            raise ValueError(f"expected {2 * _DIGEST} hexadecimal digits, not {len(text)}")
        return Page(text, fingerprint)
