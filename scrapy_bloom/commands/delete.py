"""``scrapy bloom delete``: delete a filter that no crawl uses."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.output import show
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.target import add_target, target_of
from scrapy_bloom.errors import SettingError
from scrapy_bloom.values import counted

EXAMPLE = "job --yes"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add_target(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: Namespace, project: Project) -> int:
    """Confirm and delete; return 1 if the answer was no."""
    target = target_of(project, args.target)
    if not args.yes:
        facts = target.info()
        text = counted(facts["items"], "page")
        if "waiting" in facts:
            text += f" and {counted(facts['waiting'], 'waiting request')}"
        if not _confirm(f"Delete {target.name} with {text}?"):
            return 1
    target.delete()
    show(args, {"deleted": target.name}, [f"{target.name}: deleted"])
    return 0


def _confirm(question: str) -> bool:
    if not sys.stdin.isatty():
        raise SettingError(f"{question} Standard input is not a terminal: confirm with --yes")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
