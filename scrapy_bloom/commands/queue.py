"""``scrapy bloom queue``: what waits to be fetched."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Final

from scrapy_bloom.commands.output import progress, show, table
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
    """Print what waits; return 1 if --failed asks for the failed list, and it is not empty."""
    target = target_of(project, args.target)
    if args.retry:
        retried = target.retry()
        show(args, {"retried": retried}, [f"{counted(retried, 'request')} put back in the queue"])
        return 0
    with target.requests(failed=args.failed) as (total, taken, found):
        if args.failed:
            shown = [*islice(found, args.peek)]
            none = ["No request is on the failed list."]
            value = {"failed": [one._asdict() for one in shown]}
            show(args, value, _table(shown) if shown else none)
            return 1 if shown else 0
        priorities: Counter[int] = Counter()
        hosts: Counter[str] = Counter()
        for request in progress(found, "requests read"):
            priorities[request.priority] += 1
            hosts[request.host] += 1
    first = target.upcoming(args.peek)
    by_priority = sorted(priorities.items(), reverse=True)
    summary = {
        "waiting": total,
        "in_flight": taken,
        "read": priorities.total(),
        "by_priority": dict(by_priority),
        "by_host": dict(hosts.most_common()),
        "first": [one._asdict() for one in first],
    }
    lines = [f"{counted(total, 'request')} to be fetched, {taken:,} of them in flight"]
    if first:
        lines += ["", *table(by_priority, ("priority", "requests"))]
        lines += ["", *table(hosts.most_common(_HOSTS), ("host", "requests"))]
        lines += ["", *_table(first)]
    show(args, summary, lines)
    return 0


def _table(requests: list[WaitingRequest]) -> Iterator[str]:
    rows = (
        (one.priority, one.depth, one.method, one.callback or "parse", one.url or one.problem)
        for one in requests
    )
    return table(rows, ("priority", "depth", "method", "callback", "URL"))
