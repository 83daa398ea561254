"""``scrapy bloom forget``: let pages through once more."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.output import Output
from scrapy_bloom.commands.pages import add_pages, change
from scrapy_bloom.commands.project import Project

EXAMPLE = "job http://example.com/news"
SUMMARY = "let pages through once more: the next request for each is new"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_pages(parser)


def run(args: Namespace, project: Project, output: Output) -> int:
    """Let pages through; print how many. Return 1 if the filter has not had one of them."""
    done = change(args, project, output, forget=True)
    text = f"{done.known:,} pages are eligible again, {done.unknown:,} were new anyway"
    output.show({"forgotten": done.known, "unknown": done.unknown, "bad": done.bad}, [[text]])
    return 1 if done.unknown or done.bad else 0
