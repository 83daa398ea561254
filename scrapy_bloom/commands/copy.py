"""``scrapy bloom copy``: a filter to a place where there is none."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace

from scrapy_bloom.commands.local_target import LocalTarget
from scrapy_bloom.commands.output import Output
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.target import Target, add_spider, target_of
from scrapy_bloom.errors import SettingError

EXAMPLE = "job redis://localhost#books:books:bloom"
SUMMARY = "copy a filter between any two places, bit by bit"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument("source", metavar="SRC", help="the filter; or the queue of scrapy-redis")
    parser.add_argument("target", metavar="DST", help="where to put it: nothing may be there")
    add_spider(parser)


def run(args: Namespace, project: Project, output: Output) -> int:
    """Copy, and print what was copied."""
    source, target = (target_of(project, where) for where in (args.source, args.target))
    requests, warnings = _copy(source, target, project)
    for warning in warnings:
        output.note(f"Note: {warning}")
    items = target.info()["items"]
    text = f"{target.name}: {items:,} items"
    if requests:
        text = f"{requests:,} requests were copied. {text}"
    output.show({"target": target.name, "items": items, "requests": requests}, [[text]])
    return 0


def _copy(source: Target, target: Target, project: Project) -> tuple[int, Sequence[str]]:
    """Copy; return how many requests were copied, and what the user should know."""
    if isinstance(source, LocalTarget):
        contents = source.read()
    else:
        # Imported only here: redis is an extra.
        from scrapy_bloom.commands import from_scrapy_redis, moving  # noqa: PLC0415

        if from_scrapy_redis.is_queue(source):
            if isinstance(target, LocalTarget):
                raise SettingError(
                    f"key {source.key}: found a queue of scrapy-redis. Its crawl can only be copied"
                    f" into Redis, and {target.name} is not there"
                )
            return from_scrapy_redis.copy_crawl(source, target, project)
        contents = moving.read_bits(source)
    if project.spider:
        contents = replace(contents, identity=replace(contents.identity, spider=project.spider))
    if isinstance(target, LocalTarget):
        target.write(contents)
    else:
        from scrapy_bloom.commands import moving  # noqa: PLC0415

        moving.write_bits(target, contents, project.owner if project.keeps_requests else {})
    return 0, contents.warnings
