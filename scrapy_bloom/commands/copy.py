"""``scrapy bloom copy``: copy a job or a crawl into Redis."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.local_target import LocalTarget
from scrapy_bloom.commands.output import show
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.target import target_of
from scrapy_bloom.errors import SettingError
from scrapy_bloom.values import counted

EXAMPLE = "job redis://localhost#books:books:bloom"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("source", metavar="SRC", help="a TARGET; or the queue of scrapy-redis")
    parser.add_argument("target", metavar="DST", help="the URL of a Redis server, with #KEY")


def run(args: Namespace, project: Project) -> int:
    """Copy, and print what was copied."""
    source, target = (target_of(project, where) for where in (args.source, args.target))
    if isinstance(target, LocalTarget):
        raise SettingError(
            f"{target.name}: found a path, expected the URL of a Redis server with #KEY at its end."
            f" To copy a stopped job to another directory, copy its folder."
        )
    if not isinstance(source, LocalTarget):
        # Imported only here, like the other one: redis is an extra.
        from scrapy_bloom.commands.from_scrapy_redis import copy_crawl  # noqa: PLC0415

        copy_crawl(source, target, project)
    else:
        from scrapy_bloom.commands.from_job import copy_job  # noqa: PLC0415

        copy_job(source, target, project)
    facts = target.info()
    items, waiting = facts["items"], facts.get("waiting")
    text = counted(items, "page")
    if waiting is not None:
        text += f" and {counted(waiting, 'request')}"
    show(
        args,
        {"target": target.name, "items": items, "waiting": waiting},
        [f"{target.name}: {text} copied"],
    )
    return 0
