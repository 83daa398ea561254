"""``scrapy bloom why URL``: what became of pages."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable
from itertools import islice
from typing import Final

from scrapy_bloom.commands import pages
from scrapy_bloom.commands.output import note, progress, show, table, write
from scrapy_bloom.commands.pages import Page
from scrapy_bloom.commands.places import Place, View
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.requests import marks_in
from scrapy_bloom.crawl.identity import start_page
from scrapy_bloom.fingerprinter import CanonicalRequestFingerprinter

EXAMPLE = "job http://example.com/"

_AT_ONCE: Final = 100_000  # pages: for so many the requests are looked through once

add_arguments = pages.add_arguments


def run(args: Namespace, project: Project) -> int:
    """Print for each page where it is; return 1 if one is not seen, or a line was invalid."""
    unknown = bad = known = 0
    target, given = pages.target_and_pages(args, project)
    with target.view() as view:
        fingerprinter, warning = project.fingerprinter_for(view.identity)
    if warning:
        note(warning)
    lines = pages.read(given, fingerprinter)
    while batch := [*islice(lines, _AT_ONCE)]:
        valid = [page for page in batch if page]
        with target.view() as view:  # not while lines are awaited: it would keep SQLite's log
            places = _places(view, [page.fingerprint for page in valid], fingerprinter)
        _show(args, zip(valid, places, strict=True), fingerprinter, first=not known + unknown)
        none = sum(place.state == "not seen" for place in places)
        unknown, known = unknown + none, known + len(places) - none
        bad += len(batch) - len(valid)
    pages.print_skipped(bad, known + unknown + bad)
    return 1 if unknown or bad else 0


def _places(
    view: View, marks: list[bytes], fingerprinter: CanonicalRequestFingerprinter
) -> list[Place]:
    """Return where some pages are.

    Their marks are asked for first: one that is done meanwhile is not called unseen.
    """
    rest = "seen" if view.requests is None else "done"
    states = {
        mark: Place(rest if known or start_page(mark) in view.starts else "not seen")
        for mark, known in zip(marks, view.knows(marks), strict=True)
    }
    missing = set(states)
    for found in progress(view.requests(), "requests") if view.requests else ():
        if not missing:
            break
        own = () if found.mark is None else (found.mark,)
        for mark in missing.intersection(
            (*own, *marks_in(found.body, fingerprinter.fingerprint, view.read))
        ):
            states[mark] = found.place
            missing.discard(mark)
    return [states[mark] for mark in marks]


def _show(
    args: Namespace,
    rows: Iterable[tuple[Page, Place]],
    fingerprinter: CanonicalRequestFingerprinter,
    *,
    first: bool,
) -> None:
    shown: list[tuple[str, ...]] = []
    for page, place in rows:
        form = fingerprinter.canonical_url(page.url) if page.url else ""
        if args.json:
            line = {"text": page.text, "fingerprint": page.fingerprint.hex(), "canonical": form}
            write([json.dumps({**line, **place.facts()})])
        else:
            shown.append((page.text, "" if form == page.text else form, str(place)))
    header: tuple[str, ...] = ("page", "stands as", "is")
    if not any(form for _, form, _ in shown):
        header, shown = ("page", "is"), [(text, said) for text, _, said in shown]
    if shown:
        show(args, None, table(shown, header if first else ()))
