"""``scrapy bloom contains``: which pages a filter calls seen."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.output import Output
from scrapy_bloom.commands.pages import Lines, add_pages, opened
from scrapy_bloom.commands.project import Project

EXAMPLE = "job http://example.com/"
SUMMARY = "tell which pages a filter calls seen, and their canonical form"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_pages(parser)


def run(args: Namespace, project: Project, output: Output) -> int:
    """Print for each page whether it is seen or new; return 0 if all are seen."""
    all_seen = True
    with opened(args, project) as (target, stream), target.asking() as (identity, contains_many):
        fingerprinter, warning = project.fingerprinter_for(identity)
        if warning:
            output.note(warning)
        lines = Lines(stream, fingerprinter, output)
        for pages in lines.batches():
            seen = contains_many([page.fingerprint for page in pages])
            for page, is_seen in zip(pages, seen, strict=True):
                row = "seen" if is_seen else "new", page.text, page.canonical
                names = {"page": page.text, "seen": is_seen, "canonical": page.canonical}
                output.show_one({**names, "fingerprint": page.fingerprint.hex()}, row)
            all_seen = all_seen and all(seen)
    return 0 if all_seen and not lines.bad else 1
