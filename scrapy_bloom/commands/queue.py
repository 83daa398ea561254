"""``scrapy bloom queue``: the requests to be fetched."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Final

from scrapy_bloom.commands.output import as_text, progress, show, table
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.requests import WaitingRequest
from scrapy_bloom.commands.target import add_target, target_of
from scrapy_bloom.values import counted

EXAMPLE = "job --peek 5"

_HOSTS: Final = 10


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
    with target.requests(failed=args.failed) as (total, in_flight, requests):
        if args.failed:
            shown = [*islice(requests, args.peek)]
            none = ["No request is on the failed list."]
            value = {"failed": [request._asdict() for request in shown]}
            show(args, value, _table(shown) if shown else none)
            return 1 if shown else 0
        priorities: Counter[int] = Counter()
        hosts: Counter[str] = Counter()
        dates = []
        for request in progress(requests, "requests read"):
            priorities[request.priority] += 1
            hosts[request.host] += 1
            dates += [request.not_before] if request.not_before else []
    first = target.upcoming(args.peek)
    by_priority = sorted(priorities.items(), reverse=True)
    summary = {
        "waiting": total,
        "in_flight": in_flight,
        "read": priorities.total(),
        "later": len(dates),
        "next_due": _date(min(dates)) if dates else None,
        "by_priority": dict(by_priority),
        "by_host": dict(hosts.most_common()),
        "first": [request._asdict() for request in first],
    }
    lines = [f"{counted(total, 'request')} to be fetched, {in_flight:,} of them in flight"]
    if dates:
        span = f"{as_text(_date(min(dates)))} and {as_text(_date(max(dates)))}"
        lines.append(f"{counted(len(dates), 'request')} of these not before a time between {span}")
    if by_priority:
        lines += ["", *table(by_priority, ("priority", "requests"))]
        lines += ["", *table(hosts.most_common(_HOSTS), ("host", "requests"))]
    if first:
        lines += ["", *_table(first)]
    show(args, summary, lines)
    return 0


def _date(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds).astimezone()


def _table(requests: list[WaitingRequest]) -> Iterator[str]:
    rows = (
        (each.priority, each.depth, each.method, each.callback or "parse", each.url or each.problem)
        for each in requests
    )
    return table(rows, ("priority", "depth", "method", "callback", "URL"))
