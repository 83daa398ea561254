"""``scrapy bloom give-back``: turn a job of ``scrapy_bloom.Scheduler`` into one of Scrapy's own."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from scrapy.exceptions import UsageError
from scrapy.settings import Settings
from scrapy.utils.misc import load_object

from scrapy_bloom.errors import BloomError
from scrapy_bloom.frontier.giving_back import give_back
from scrapy_bloom.frontier.requests import QueueKind

ARGUMENTS = "JOBDIR"
SUMMARY = "turn a job of scrapy_bloom.Scheduler into one of Scrapy's own scheduler"


def add_options(parser: ArgumentParser) -> None:
    """Add nothing."""


def run(args: Sequence[str], options: Namespace, settings: Settings) -> int:  # noqa: ARG001
    """Give the requests of a job back to Scrapy's own queue; print how many there are."""
    if len(args) != 1:
        raise UsageError("give-back: give one job directory", print_help=False)
    try:
        plain = QueueKind.of("SCHEDULER_DISK_QUEUE", load_object(settings["SCHEDULER_DISK_QUEUE"]))
        name = settings["SCHEDULER_START_DISK_QUEUE"]
        start = QueueKind.of("SCHEDULER_START_DISK_QUEUE", load_object(name)) if name else None
        queue_class = load_object(settings["SCHEDULER_PRIORITY_QUEUE"])
        count = give_back(Path(args[0]), queue_class, plain, start)
    except (BloomError, ValueError) as error:
        raise UsageError(f"give-back: {error}", print_help=False) from error
    sys.stdout.write(
        f"{count:,} requests are in {Path(args[0]) / 'requests.queue'}. Remove SCHEDULER ="
        f" 'scrapy_bloom.Scheduler' before the next run.\n"
    )
    return 0
