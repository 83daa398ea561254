"""``scrapy bloom add`` and ``forget``: change a filter.

Pages are URLs, or fingerprints in hexadecimal, as arguments or one a line on standard input.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from scrapy import Request

from scrapy_bloom.commands.output import note, progress, show
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.target import SCHEMES, Target, target_of
from scrapy_bloom.errors import SettingError
from scrapy_bloom.filter.hashing import SHA1_BYTES
from scrapy_bloom.fingerprinter import CanonicalRequestFingerprinter
from scrapy_bloom.values import counted

EXAMPLE = "job http://example.com/"

_AT_ONCE: Final = 5000  # pages
_MANY: Final = 100  # fingerprints of which one should be there
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
    """Print how many pages were added or forgotten.

    Return 1 if a line was invalid, or if a page to forget is not in the filter.
    """
    known = new = bad = urls = 0
    target, given = target_and_pages(args, project)
    with target.marks(args.verb) as (identity, carry_out):
        fingerprinter, warning = project.fingerprinter_for(identity)
        if warning:
            note(warning)
        lines = progress(read(given, fingerprinter), "pages")
        while batch := [*islice(lines, _AT_ONCE)]:
            valid = [page.fingerprint for page in batch if page]
            urls += sum(bool(page.url) for page in batch if page)
            seen = carry_out(valid)
            known += sum(seen)
            new += len(seen) - sum(seen)
            bad += len(batch) - len(valid)
    print_skipped(bad, known + new + bad)
    if args.verb == "add":
        text = f"{counted(new, 'page')} marked; {known:,} marked before"
        show(args, {"new": new, "seen": known, "bad": bad}, [text])
        in_vain = new >= _MANY and not (known or urls) and _print_in_vain(target, new)
        return 1 if bad or in_vain else 0
    text = f"{counted(known, 'page')} eligible again; {new:,} not in the filter"
    show(args, {"forgotten": known, "unknown": new, "bad": bad}, [text])
    return 1 if new or bad else 0


def _print_in_vain(target: Target, new: int) -> bool:
    """Say that fingerprints are of another kind than those in a filter; return whether they are.

    :param new: how many were added, none of which was there.
    """
    others: int = target.info()["items"] - new
    if others > 0:
        note(
            f"none of these fingerprints was among the {counted(others, 'page')} that the filter"
            f" knew. If they belong to the same crawl, they were computed differently and match no"
            f" page: check REQUEST_FINGERPRINTER_CLASS, and the version of Scrapy that made them"
        )
    return others > 0


def target_and_pages(args: Namespace, project: Project) -> tuple[Target, Iterable[bytes]]:
    """Return the target that the arguments name, and the lines with pages.

    :raises SettingError: if they name no pages.
    """
    pages = args.pages
    where = pages.pop(0) if pages and pages[0] != "-" and not _is_page(pages[0]) else None
    if not pages or ("-" in pages and len(pages) > 1):
        raise SettingError("expected URLs, or - for those on standard input")
    given = sys.stdin.buffer if pages == ["-"] else [page.encode() for page in pages]
    return target_of(project, where), given


def print_skipped(bad: int, lines: int) -> None:
    """Say how many lines were invalid, if any."""
    if bad:
        note(f"skipped {bad:,} of {counted(lines, 'line')}")


def _is_page(text: str) -> bool:
    if text.startswith(SCHEMES) or Path(text).exists():
        return False
    return "://" in text or _HEX.fullmatch(text) is not None


class Page(NamedTuple):
    """A page.

    Attributes:
        text: the URL or the fingerprint as it was given.
        fingerprint: its fingerprint.
        url: the URL of a request for it; empty if only its fingerprint was given.
    """

    text: str
    fingerprint: bytes
    url: str = ""


def read(
    lines: Iterable[bytes], fingerprinter: CanonicalRequestFingerprinter
) -> Iterator[Page | None]:
    """Yield the page of each line that is not empty; None for an invalid one, which is reported."""
    for number, line in enumerate(lines, 1):
        try:
            if text := line.decode().strip():
                yield _page(text, fingerprinter)
        except ValueError as error:  # a line takes longer than that
            reason = "not UTF-8" if isinstance(error, UnicodeError) else str(error)
            shown = line.decode(errors="replace").strip()[:100]
            note(f"line {number:,}: {shown!r}: {reason}")
            yield None


def _page(text: str, fingerprinter: CanonicalRequestFingerprinter) -> Page:
    if not _HEX.fullmatch(text):
        request = Request(text)
        return Page(text, fingerprinter.fingerprint(request), request.url)
    fingerprint = bytes.fromhex(text)
    if fingerprinter.digests and len(fingerprint) != SHA1_BYTES:
        raise ValueError(f"expected {2 * SHA1_BYTES} hexadecimal digits, not {len(text)}")
    return Page(text, fingerprint)
