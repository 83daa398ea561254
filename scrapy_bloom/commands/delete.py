"""``scrapy bloom delete``: a filter, when nobody uses it."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.local_target import LocalTarget
from scrapy_bloom.commands.output import Output
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.target import Target, add_target, target_of
from scrapy_bloom.errors import SettingError, StateError

EXAMPLE = "job --yes"
SUMMARY = "delete a filter that no crawl uses, with the requests of our scheduler beside it"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_target(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: Namespace, project: Project, output: Output) -> int:
    """Ask, and delete; return 1 if the answer was no."""
    target = target_of(project, args.target)
    question = _question(target)
    if not (args.yes or _confirm(question)):
        return 1
    for note in target.delete():
        output.note(note)
    output.show({"deleted": target.name}, [[f"{target.name}: deleted"]])
    return 0


def _question(target: Target) -> str:
    """Return what to ask.

    :raises StateError: if nothing is there, or nothing of ours.
    """
    try:
        found = target.info()
    except StateError as error:
        if isinstance(target, LocalTarget) or not target.remains():
            raise
        return f"{error} Delete all that is there?"
    text = f"Delete the filter at {target.name} with {found['items']:,} pages"
    if "waiting" in found:
        text += f" and the {found['waiting']:,} requests that wait there"
    return f"{text}?"


def _confirm(question: str) -> bool:
    if not sys.stdin.isatty():
        raise SettingError(f"{question} There is nobody to ask here: give --yes")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
