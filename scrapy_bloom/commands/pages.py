"""``scrapy bloom contains``, ``add`` and ``forget``: ask a filter about pages, or change it.

Pages are URLs, or fingerprints in hexadecimal, as arguments or one a line on standard input.
"""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from scrapy import Request

from scrapy_bloom.commands.output import note, progress, show, table
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.target import SCHEMES, target_of
from scrapy_bloom.errors import SettingError
from scrapy_bloom.filter.hashing import SHA1_BYTES
from scrapy_bloom.fingerprinter import CanonicalFingerprinter
from scrapy_bloom.values import counted

EXAMPLE = "job http://example.com/"

_AT_ONCE: Final = 5000  # pages
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


def run(args: Namespace, project: Project) -> int:
    """Print for each page whether it is seen, or how many were added or forgotten.

    Return 1 if a line was invalid, or if a page to show or to forget is not in the filter.
    """
    verb, pages = args.verb, args.pages
    where = pages.pop(0) if pages and pages[0] != "-" and not _is_page(pages[0]) else None
    if not pages or ("-" in pages and len(pages) > 1):
        raise SettingError("expected URLs, or - for those on standard input")
    given = sys.stdin.buffer if pages == ["-"] else [page.encode() for page in pages]
    known = new = bad = 0
    with target_of(project, where).marks(verb) as (identity, carry_out):
        fingerprinter, warning = project.fingerprinter_for(identity)
        if warning:
            note(warning)
        lines = progress(_read(given, fingerprinter), "pages")
        while batch := [*islice(lines, _AT_ONCE)]:
            valid = [page for page in batch if page]
            seen = carry_out([page.fingerprint for page in valid])
            if verb == "contains" and valid:
                _show(args, valid, seen, first=known + new == 0)
            known += sum(seen)
            new += len(seen) - sum(seen)
            bad += len(batch) - len(valid)
    if bad:
        note(f"skipped {bad:,} of {counted(known + new + bad, 'line')}")
    if verb == "add":
        text = f"{counted(new, 'page')} marked; {known:,} marked before"
        show(args, {"new": new, "seen": known, "bad": bad}, [text])
        return 1 if bad else 0
    if verb == "forget":
        text = f"{counted(known, 'page')} eligible again; {new:,} not in the filter"
        show(args, {"forgotten": known, "unknown": new, "bad": bad}, [text])
    return 1 if new or bad else 0


def _show(args: Namespace, pages: list[Page], seen: list[bool], *, first: bool) -> None:
    words = ["seen" if is_seen else "new" for is_seen in seen]
    if not args.json:
        rows = [(page.text, word) for page, word in zip(pages, words, strict=True)]
        show(args, None, table(rows, ("page", "is") if first else ()))
        return
    for page, word in zip(pages, words, strict=True):
        line = {"text": page.text, "fingerprint": page.fingerprint.hex(), "is": word}
        sys.stdout.write(f"{json.dumps(line)}\n")


def _is_page(text: str) -> bool:
    if text.startswith(SCHEMES) or Path(text).exists():
        return False
    return "://" in text or _HEX.fullmatch(text) is not None


class Page(NamedTuple):
    """A page.

    Attributes:
        text: the URL or the fingerprint as it was given.
        fingerprint: its fingerprint.
    """

    text: str
    fingerprint: bytes


def _read(lines: Iterable[bytes], fingerprinter: CanonicalFingerprinter) -> Iterator[Page | None]:
    """Yield the page of each line that is not empty; None for an invalid one, which is reported."""
    for number, line in enumerate(lines, 1):
        try:
            if text := line.decode().strip():
                yield _page(text, fingerprinter)
        except ValueError as error:  # noqa: PERF203 - a line takes longer than that
            reason = "not UTF-8" if isinstance(error, UnicodeError) else str(error)
            shown = line.decode(errors="replace").strip()[:100]
            note(f"line {number:,}: {shown!r}: {reason}")
            yield None


def _page(text: str, fingerprinter: CanonicalFingerprinter) -> Page:
    if not _HEX.fullmatch(text):
        return Page(text, fingerprinter.fingerprint(Request(text)))
    fingerprint = bytes.fromhex(text)
    if fingerprinter.digests and len(fingerprint) != SHA1_BYTES:
        raise ValueError(f"expected {2 * SHA1_BYTES} hexadecimal digits, not {len(text)}")
    return Page(text, fingerprint)
