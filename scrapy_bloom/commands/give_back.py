"""``scrapy bloom give-back``: turn a job of ``scrapy_bloom.Scheduler`` into one of Scrapy's own."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from scrapy.utils.misc import load_object

from scrapy_bloom.commands.context import Context
from scrapy_bloom.errors import SettingError
from scrapy_bloom.frontier.giving_back import give_back
from scrapy_bloom.frontier.requests import QueueKind

EXAMPLE = "job"
SUMMARY = "turn a job of scrapy_bloom.Scheduler into one of Scrapy's own scheduler"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument("folder", metavar="JOBDIR", nargs="*", help="the job directory")


def run(args: Namespace, context: Context) -> int:
    """Give the requests of a job back to Scrapy's own queue; print how many there are."""
    if len(args.folder) != 1:
        raise SettingError("give one job directory")
    folder = Path(args.folder[0])
    settings = context.scrapys
    plain = QueueKind.of("SCHEDULER_DISK_QUEUE", load_object(settings["SCHEDULER_DISK_QUEUE"]))
    name = settings["SCHEDULER_START_DISK_QUEUE"]
    start = QueueKind.of("SCHEDULER_START_DISK_QUEUE", load_object(name)) if name else None
    count = give_back(folder, load_object(settings["SCHEDULER_PRIORITY_QUEUE"]), plain, start)
    if context.output.as_json:
        context.output.json({"job": str(folder), "requests": count})
    context.output.done(
        f"{count:,} requests are in {folder / 'requests.queue'}. Remove SCHEDULER ="
        f" 'scrapy_bloom.Scheduler' before the next run."
    )
    return 0
