"""``scrapy bloom give-back``: from our scheduler back to that of Scrapy, or of scrapy-redis."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from scrapy.utils.misc import load_object
from scrapy.utils.project import inside_project

from scrapy_bloom.commands.context import Context, add_target
from scrapy_bloom.errors import SettingError
from scrapy_bloom.frontier.giving_back import give_back, noted_queues
from scrapy_bloom.frontier.opening import QUEUE_SETTINGS
from scrapy_bloom.frontier.requests import QueueKind
from scrapy_bloom.tools.giving_back import give_back as give_back_in_redis
from scrapy_bloom.tools.local_target import FileTarget, JobTarget
from scrapy_bloom.tools.resolve import target_of

EXAMPLE = "job"
SUMMARY = "give the requests of scrapy_bloom.Scheduler back to Scrapy's or scrapy-redis's scheduler"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_target(parser)


def run(args: Namespace, context: Context) -> int:
    """Give the requests of a crawl back; print how many there are."""
    target = target_of(args.target, key=args.key, project=context.project)
    if isinstance(target, JobTarget):
        return _give_job(target.folder, context)
    if isinstance(target, FileTarget):
        raise SettingError(f"{target.name} is a file: give a job directory, or a filter in Redis")
    output = context.output
    done = give_back_in_redis(
        target, project=context.project, progress=output.progress, note=output.note
    )
    if done.failed:
        output.note(
            f"Note: {done.failed:,} requests that were put aside stay where they are."
            f" 'scrapy bloom queue --failed' shows them."
        )
    if done.let_through:
        output.note(
            f"Note: {done.let_through:,} pages were to be let through once more, because their"
            f" requests could not be stored. Other schedulers with this filter call them seen:"
            f" 'scrapy bloom forget' lets them through in a filter of the layout 'sets'."
        )
    if output.as_json:
        output.json(done)
    output.done(
        f"{done.requests:,} requests were moved to key {done.key}, which holds {done.holds:,} now."
        f" Set SCHEDULER = 'scrapy_redis.scheduler.Scheduler', SCHEDULER_PERSIST = True and"
        f" REDIS_URL. Keep ADDONS as it is, or without it DUPEFILTER_CLASS ="
        f" 'scrapy_bloom.BloomDupeFilter': the filter stays. Another filter knows none of the pages"
        f" that were fetched."
    )
    return 0


def _give_job(folder: Path, context: Context) -> int:
    chosen = _queues(folder, context)
    priority, disk, start_disk = (chosen[name] for name in QUEUE_SETTINGS)
    plain = QueueKind.of("SCHEDULER_DISK_QUEUE", load_object(disk))
    start = (
        QueueKind.of("SCHEDULER_START_DISK_QUEUE", load_object(start_disk)) if start_disk else None
    )
    count = give_back(folder, load_object(priority), plain, start)
    if context.output.as_json:
        context.output.json({"job": str(folder), "requests": count})
    context.output.done(
        f"{count:,} requests are in {folder / 'requests.queue'}, for SCHEDULER_DISK_QUEUE ="
        f" {disk!r} and SCHEDULER_PRIORITY_QUEUE = {priority!r}. Remove SCHEDULER ="
        f" 'scrapy_bloom.Scheduler' before the next run, and keep the filter: the marks stay in"
        f" {folder / 'requests.bloom'}, which no other filter reads."
    )
    return 0


def _queues(folder: Path, context: Context) -> dict[str, Any]:
    """Return how the queue is to be stored: as the project says, else as the last run did."""
    settings = context.scrapys
    noted = {} if inside_project() else noted_queues(folder)
    return {
        name: settings[name] if settings.getpriority(name) else noted.get(name, settings[name])
        for name in QUEUE_SETTINGS
    }
