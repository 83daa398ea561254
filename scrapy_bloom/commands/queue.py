"""``scrapy bloom queue``: the requests to be fetched."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import islice

from scrapy_bloom.commands.output import moment, show, table
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.requests import WaitingRequest
from scrapy_bloom.commands.target import add_target, target_of
from scrapy_bloom.errors import StateError
from scrapy_bloom.values import counted

EXAMPLE = "job --peek 5"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add_target(parser)
    parser.add_argument("--peek", type=int, default=10, metavar="N", help="show the first N")
    parser.add_argument("--failed", action="store_true", help="show the failed list instead")
    parser.add_argument("--retry", action="store_true", help="put the failed list back, in Redis")


def run(args: Namespace, project: Project) -> int:
    """Print the queue; with --failed the failed list, and return 1 if that is not empty."""
    target = target_of(project, args.target)
    if args.retry:
        retried = target.retry()
        show(args, {"retried": retried}, [f"{counted(retried, 'request')} put back in the queue"])
        return 0
    facts = target.info()
    if "waiting" not in facts:
        raise StateError(
            f"{target.name}: found a filter without requests, expected those of"
            f" scrapy_bloom.Scheduler. The queues of other schedulers are not read."
        )
    if args.failed:
        shown = [*islice(target.failed(), args.peek)]
        lines = _failed_table(shown) if shown else ["No request is on the failed list."]
        show(args, {"failed": [request._asdict() for request in shown]}, lines)
        return 1 if shown else 0
    first = target.upcoming(args.peek)
    summary = {name: facts[name] for name in ("waiting", "in_flight", "later", "next_due")}
    waiting = counted(facts["waiting"], "request")
    lines = [f"{waiting} to be fetched, {facts['in_flight']:,} of them in flight"]
    if facts["later"]:
        later = counted(facts["later"], "request")
        lines.append(f"{later} of these not before a time, the first {moment(facts['next_due'])}")
    if first:
        lines += ["", *_table(first)]
    show(args, {**summary, "first": [request._asdict() for request in first]}, lines)
    return 0


def _failed_table(requests: list[WaitingRequest]) -> Iterator[str]:
    rows = (
        (each.reason, each.method, each.callback or "parse", each.url or each.problem)
        for each in requests
    )
    return table(rows, ("reason", "method", "callback", "URL"))


def _table(requests: list[WaitingRequest]) -> Iterator[str]:
    rows = (
        (each.priority, each.depth, each.method, each.callback or "parse", each.url or each.problem)
        for each in requests
    )
    return table(rows, ("priority", "depth", "method", "callback", "URL"))
