"""``scrapy bloom add``: mark pages as seen, without a crawl."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from scrapy_bloom.commands.output import Output
from scrapy_bloom.commands.pages import add_pages, change
from scrapy_bloom.commands.project import Project
from scrapy_bloom.local.job import SEEN
from scrapy_bloom.local.scrapys import why_unclean

EXAMPLE = "job http://example.com/"
SUMMARY = "mark pages as seen, without a crawl; make the filter where there is none"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_pages(parser)


def run(args: Namespace, project: Project, output: Output) -> int:
    """Mark pages; print how many were new."""
    path = Path(args.file or "")
    if path.name == SEEN and (why := why_unclean(path.parent)):
        output.note(
            f"Note: The crawl of {path} was killed ({why}): some of its marks are those of requests"
            f" that are lost, and their pages are not fetched."
        )
    done = change(args, project, output, forget=False)
    text = f"{done.unknown:,} pages marked, {done.known:,} were marked before"
    output.show({"new": done.unknown, "seen": done.known, "bad": done.bad}, [[text]])
    return 1 if done.bad else 0
