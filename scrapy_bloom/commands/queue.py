"""``scrapy bloom queue``: what waits to be fetched."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from scrapy_bloom.commands.context import Context, add_target
from scrapy_bloom.commands.output import Fact, Output
from scrapy_bloom.frontier.waiting import WaitingRequest
from scrapy_bloom.tools.waiting import MOST, queue

EXAMPLE = "job --peek 5"
SUMMARY = "show what waits in scrapy_bloom.Scheduler: by priority, by host, the first ones"

_HOSTS = 20


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_target(parser)
    parser.add_argument("--peek", type=int, default=20, metavar="N", help="show the first N")
    parser.add_argument("--failed", action="store_true", help="show those that were given up")
    parser.add_argument("--most", type=int, default=MOST, metavar="N", help="read at most N")


def run(args: Namespace, context: Context) -> int:
    """Print what waits; return 1 if --failed asks for those given up, and there are some."""
    output = context.output
    found = queue(
        args.target,
        peek=args.peek,
        failed=args.failed,
        most=args.most,
        newest_first="Fifo" not in str(context.scrapys["SCHEDULER_DISK_QUEUE"]),
        key=args.key,
        project=context.project,
        progress=output.progress,
    )
    if not found.marked:
        output.note(
            "Note: the filter beside these requests has gone. A crawl with scrapy_bloom.Scheduler"
            " fetches them, and may fetch pages twice. To begin anew, run 'scrapy bloom delete'"
            " first."
        )
    if output.as_json:
        output.json(found)
    elif args.failed:
        _show(output, "given up or unreadable", found.failed)
    else:
        output.facts(
            found.target,
            [
                Fact("waiting", found.total, f"{found.total:,}"),
                Fact("under way", found.under_way, f"{found.under_way:,} at the last commit"),
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
