"""``scrapy bloom queue``: what waits to be fetched."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from itertools import islice
from typing import Final

from scrapy_bloom.commands.output import Output
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.requests import WaitingRequest
from scrapy_bloom.commands.target import add_target, target_of

EXAMPLE = "job --peek 5"
SUMMARY = "show what waits in scrapy_bloom.Scheduler: by priority, by host, the first ones"

_HOSTS: Final = 20
_MOST: Final = 1_000_000  # requests that are read


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_target(parser)
    parser.add_argument("--peek", type=int, default=20, metavar="N", help="show the first N")
    parser.add_argument("--failed", action="store_true", help="show the failed list instead")
    parser.add_argument("--retry", action="store_true", help="put the failed list back, in Redis")


def run(args: Namespace, project: Project, output: Output) -> int:
    """Print what waits; return 1 if --failed asks for the failed list, and it is not empty."""
    target = target_of(project, args.target)
    if args.retry:
        count = target.retry()
        output.show({"retried": count}, [[f"{count:,} requests are back in the queue"]])
        return 0
    newest_first = "Fifo" not in str(project.scrapys["SCHEDULER_DISK_QUEUE"])
    with target.requests(failed=args.failed, newest_first=newest_first) as (total, taken, found):
        if args.failed:
            shown = [*islice(found, args.peek)]
            output.show({"failed": _as_json(shown)}, map(_row, shown))
            return 1 if shown else 0
        priorities: Counter[int] = Counter()
        hosts: Counter[str] = Counter()
        first: list[WaitingRequest] = []
        for request in islice(found, _MOST):
            priorities[request.priority] += 1
            hosts[request.host] += 1
            if len(first) < args.peek:
                first.append(request)
    by_priority = sorted(priorities.items(), reverse=True)
    value = {
        "waiting": total,
        "in_flight": taken,
        "read": priorities.total(),
        "by_priority": dict(by_priority),
        "by_host": dict(hosts.most_common()),
        "first": _as_json(first),
    }
    rows = [
        ("waiting", total),
        ("in flight", taken),
        *(("priority", *pair) for pair in by_priority),
        *(("host", *pair) for pair in hosts.most_common(_HOSTS)),
        *map(_row, first),
    ]
    output.show(value, rows)
    return 0


def _as_json(requests: list[WaitingRequest]) -> list[dict[str, object]]:
    return [one._asdict() for one in requests]


def _row(one: WaitingRequest) -> tuple[object, ...]:
    url = one.url or one.problem
    return "request", one.priority, one.method, url, one.depth, one.callback
