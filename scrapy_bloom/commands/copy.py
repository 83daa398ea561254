"""``scrapy bloom copy``: a filter or a crawl to a place where there is none."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import replace

from scrapy_bloom.commands.local_target import LocalTarget
from scrapy_bloom.commands.output import Output, Progress
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.target import Target, add_spider, target_of
from scrapy_bloom.errors import StateError
from scrapy_bloom.options import counted

EXAMPLE = "job redis://localhost#books:books:bloom"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("source", metavar="SRC", help="a TARGET; or the queue of scrapy-redis")
    parser.add_argument("target", metavar="DST", help="where to put it: nothing may be there")
    add_spider(parser)


def run(args: Namespace, project: Project, output: Output) -> int:
    """Copy, and print what was copied."""
    source, target = (target_of(project, where) for where in (args.source, args.target))
    with Progress("requests copied") as progress:
        warning = _copy(source, target, project, progress.add)
    if warning:
        output.note(f"Note: {warning}")
    facts = target.info()
    items, waiting = facts["items"], facts.get("waiting")
    text = counted(items, "page")
    if waiting is not None:
        text += f" and {counted(waiting, 'request')}"
    output.show(
        {"target": target.name, "items": items, "waiting": waiting},
        [f"{target.name}: {text} copied"],
    )
    return 0


def _copy(
    source: Target, target: Target, project: Project, on_request: Callable[[int], None]
) -> str:
    """Copy; return what the user should know."""
    if isinstance(source, LocalTarget) and isinstance(target, LocalTarget):
        target.copy_from(source, project.spider)
        return ""
    # Imported only here: redis is an extra.
    from scrapy_bloom.commands import bits, from_scrapy_redis  # noqa: PLC0415

    if not isinstance(source, LocalTarget):
        from_scrapy_redis.check_queue(source)
        if isinstance(target, LocalTarget):
            raise StateError(f"{target.name}: a crawl of scrapy-redis can only be copied to Redis.")
        return from_scrapy_redis.copy_crawl(source, target, project, on_request)
    assert not isinstance(target, LocalTarget)  # noqa: S101 - that was the first case
    with source.reading() as found:
        spider = project.spider or found.identity.spider
        contents = replace(found, identity=replace(found.identity, spider=spider))
        theirs = Project(project.given, spider)
        crawls = contents.requests is not None or theirs.keeps_requests
        bits.write_bits(target, contents, theirs.owner if crawls else {}, on_request)
    return ""
