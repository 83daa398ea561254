"""``scrapy bloom copy``: continue a crawl in another job directory, or in Redis."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import AbstractContextManager

from scrapy_bloom.commands.copy_from import Source, our_job, scrapy_redis_queue, scrapys_job
from scrapy_bloom.commands.copy_to_job import write_job
from scrapy_bloom.commands.local_target import LocalTarget
from scrapy_bloom.commands.output import show
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.target import target_of
from scrapy_bloom.values import counted

EXAMPLE = "job redis://localhost#books:books:bloom"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("source", metavar="SRC", help="a TARGET; or the queue of scrapy-redis")
    parser.add_argument(
        "target", metavar="DST", help="a new job directory; or the URL of a Redis server, with #KEY"
    )
    parser.add_argument(
        "--stopped",
        action="store_true",
        help="the last run of Scrapy's own scheduler was stopped, not killed",
    )


def run(args: Namespace, project: Project) -> int:
    """Copy, and print what was copied."""
    source, target = (target_of(project, where) for where in (args.source, args.target))
    reading: AbstractContextManager[Source]
    if not isinstance(source, LocalTarget):
        reading = scrapy_redis_queue(source, project)
    elif source.path.exists():
        reading = our_job(source, project)
    else:
        reading = scrapys_job(source, project, stopped=args.stopped)
    with reading as found:
        owner = Project(project.given, project.spider or found.identity.spider)
        if isinstance(target, LocalTarget):
            write_job(found, target, owner)
        else:
            from scrapy_bloom.commands.copy_to_redis import write_crawl  # an extra

            write_crawl(found, target, owner)
    facts = target.info()
    copied = {"target": target.name, "items": facts["items"]}
    text = counted(facts["items"], "page")
    if account := facts.get("account"):
        copied |= {name: account[name] for name in ("waiting", "failed")}
        text += f" and {counted(account['waiting'] + account['failed'], 'request')}"
    show(args, copied, [f"{target.name}: {text} copied"])
    return 0
