"""``scrapy bloom delete``: delete a filter that no crawl uses."""

from __future__ import annotations

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
    parser.add_argument("--yes", action="store_true", help="confirm; else nothing is deleted")


def run(args: Namespace, project: Project) -> int:
    """Delete.

    :raises SettingError: if that was not confirmed; it says what would be deleted.
    """
    target = target_of(project, args.target)
    if not args.yes:
        facts = target.info()
        text = counted(facts["items"], "page")
        if account := facts.get("account"):
            left = account["waiting"], account["failed"], account["unparsed"]
            text += ", and requests: {:,} waiting, {:,} failed, {:,} unparsed".format(*left)
        raise SettingError(f"to delete {target.name} with {text}, add --yes")
    target.delete()
    show(args, {"deleted": target.name}, [f"{target.name}: deleted"])
    return 0
