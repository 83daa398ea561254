"""``scrapy bloom queue``: what waits to be fetched."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from scrapy_bloom.commands.context import Context, add_target
from scrapy_bloom.commands.output import Fact, Output
from scrapy_bloom.commands.requests import WaitingRequest

EXAMPLE = "job --peek 5"
SUMMARY = "show what waits in scrapy_bloom.Scheduler: by priority, by host, the first ones"

_HOSTS = 20
_MOST = 1_000_000


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_target(parser)
    parser.add_argument("--peek", type=int, default=20, metavar="N", help="show the first N")
    parser.add_argument("--failed", action="store_true", help="show the failed list instead")
    parser.add_argument("--retry", action="store_true", help="put the failed list back, in Redis")
    parser.add_argument("--most", type=int, default=_MOST, metavar="N", help="read at most N")


def run(args: Namespace, context: Context) -> int:
    """Print what waits; return 1 if --failed asks for the failed list, and it is not empty."""
    output, target = context.output, context.target(args.target, args.key)
    if args.retry:
        count = target.retry()
        if output.as_json:
            output.json({"retried": count})
        output.done(f"{count:,} requests are back in the queue")
        return 0
    newest_first = "Fifo" not in str(context.scrapys["SCHEDULER_DISK_QUEUE"])
    sizes = {"peek": args.peek, "most": args.most}
    found = target.queue(output, **sizes, failed=args.failed, newest_first=newest_first)
    if output.as_json:
        output.json(found)
    elif args.failed:
        _show(output, "failed or unreadable", found.failed)
    else:
        output.facts(
            found.target,
            [
                Fact("waiting", found.total, f"{found.total:,}"),
                Fact("under way", found.under_way, f"{found.under_way:,} in flight"),
            ],
        )
        priorities = [*found.by_priority.items()]
        output.table("by priority", ("priority", "requests"), priorities, "priority")
        part = "" if found.read == found.total else f", of {found.read:,} that were read"
        hosts = [*found.by_host.items()]
        output.table(f"by host{part}", ("host", "requests"), hosts[:_HOSTS], "host")
        _show(output, "first", found.first)
    return 1 if args.failed and found.failed else 0


def _show(output: Output, title: str, requests: Sequence[WaitingRequest]) -> None:
    output.table(
        title,
        ("priority", "method", "URL", "depth", "callback"),
        [
            (one.priority, one.method, one.url or one.problem, one.depth, one.callback)
            for one in requests
        ],
        "request",
    )
