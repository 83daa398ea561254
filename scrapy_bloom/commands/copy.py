"""``scrapy bloom copy``: a filter to a place where there is none."""

from __future__ import annotations

import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from scrapy_bloom.commands.context import Context, add_key
from scrapy_bloom.commands.local_target import LocalTarget
from scrapy_bloom.commands.target import Information, Target
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.options import write_size

EXAMPLE = "job redis://localhost --key books:bloom"
SUMMARY = "copy a filter between any two places, bit by bit"


@dataclass(frozen=True)
class Moved:
    """A filter that was put somewhere.

    Attributes:
        source: where it came from.
        target: where it is now.
        items: how many items it has.
        bytes: bytes of its bits.
        error_rate: bound for its error rate, as it was made for.
        error_rate_now: chance that the next new item is called seen.
        slices: how many slices it has.
        warnings: what whoever uses it should know, as sentences.
        requests: how many requests came with it, from a crawl of scrapy-redis.
    """

    source: str
    target: str
    items: int
    bytes: int
    error_rate: float
    error_rate_now: float
    slices: int
    warnings: tuple[str, ...] = ()
    requests: int = 0

    @classmethod
    def of(
        cls, source: Target, target: Target, told: Information, warnings: list[str], requests: int
    ) -> Moved:
        """Return what was done, from what is known of the copy."""
        info = told.filter
        rates = info.error_rate, info.estimated_fp_rate
        rest = tuple(warnings), requests
        return cls(source.name, target.name, info.items, info.bytes, *rates, info.slices, *rest)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument(
        "source",
        metavar="SRC",
        help="the filter, or - for standard input; or the queue of scrapy-redis",
    )
    parser.add_argument(
        "target",
        metavar="DST",
        help="where to put it: nothing may be there; - for standard output. A filter of the"
        " layout sets cannot go into a file",
    )
    add_key(parser)
    parser.add_argument("--to-key", default="", metavar="KEY", help="key of DST, if it differs")


def run(args: Namespace, context: Context) -> int:
    """Copy, and print what was copied."""
    output, piped = context.output, args.target == "-"
    if piped and sys.stdout.isatty():
        raise SettingError("a filter is no text: give a file, or let a program read this")
    with _piped(args) as (source, target):
        here, there = _targets(source, target, args, context)
        done = _copy(here, there, context)
    if piped:
        done = replace(done, target="standard output")
    for warning in done.warnings:
        output.note(f"Note: {warning}")
    text = (
        f"{done.target}: {done.items:,} items in {write_size(done.bytes)}, {done.slices} slices,"
        f" error rate now {done.error_rate_now:.2g} (set: {done.error_rate:g})"
    )
    if done.requests:
        text = f"{done.requests:,} requests were copied. {text}"
    if piped:
        output.note(text)
        return 0
    if output.as_json:
        output.json(done)
    output.done(text)
    return 0


@contextmanager
def _piped(args: Namespace) -> Iterator[tuple[str, str]]:
    """Yield source and target; a file in the place of a pipe, since a filter is no stream."""
    with TemporaryDirectory(prefix="scrapy-bloom-") as folder:
        read, written = Path(folder) / "in.bloom", Path(folder) / "out.bloom"
        if args.source == "-":
            with read.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        yield (
            str(read) if args.source == "-" else args.source,
            str(written) if args.target == "-" else args.target,
        )
        if args.target == "-":
            try:
                with written.open("rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.flush()
            except BrokenPipeError:
                raise StateError("standard output: nobody has read it to its end") from None


def _targets(source: str, target: str, args: Namespace, context: Context) -> tuple[Target, Target]:
    """Return both places. ``--key`` is for that in Redis, if one is."""
    in_redis = [_is_in_redis(each) for each in (source, target)]
    keys = [args.key, args.to_key or args.key]
    here, there = (
        context.target(where, key if shared or not any(in_redis) else "")
        for where, key, shared in zip((source, target), keys, in_redis, strict=True)
    )
    return here, there


def _is_in_redis(where: str) -> bool:
    from scrapy_bloom.commands.project import SCHEMES  # noqa: PLC0415 - not every one needs it

    return where.startswith(SCHEMES)


def _copy(source: Target, target: Target, context: Context) -> Moved:
    output, project, requests = context.output, context.project, 0
    if isinstance(source, LocalTarget):
        contents = source.read(output)
    else:
        # Imported only here: redis is an extra.
        from scrapy_bloom.commands import from_scrapy_redis  # noqa: PLC0415
        from scrapy_bloom.commands.redis_target import RedisTarget  # noqa: PLC0415

        assert isinstance(source, RedisTarget)  # noqa: S101 - there is no other kind
        if from_scrapy_redis.is_queue(source):
            if not isinstance(target, RedisTarget):
                raise SettingError(
                    f"key {source.key}: found a queue of scrapy-redis. Its crawl can only be copied"
                    f" into Redis, and {target.name} is not there"
                )
            requests, warnings = from_scrapy_redis.copy_crawl(source, target, project, output)
            return Moved.of(source, target, target.info(), warnings, requests)
        if isinstance(target, RedisTarget):
            warnings = source.copy_to(target, project.spider, output)
            return Moved.of(source, target, target.info(), warnings, 0)
        contents = source.read(output)
    if project.spider:
        contents = replace(contents, identity=replace(contents.identity, spider=project.spider))
    target.write(contents, project.owner, output)
    return Moved.of(source, target, target.info(), [*contents.warnings], 0)
