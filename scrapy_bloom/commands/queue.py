"""``scrapy bloom queue``: the requests to be fetched."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import islice

from scrapy_bloom.commands.output import moment, show, table
from scrapy_bloom.commands.places import no_requests
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.requests import FailedRequest, WaitingRequest, matches
from scrapy_bloom.commands.target import add_target, target_of
from scrapy_bloom.errors import SettingError
from scrapy_bloom.values import counted

EXAMPLE = "job --peek 5"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add_target(parser)
    parser.add_argument("--peek", type=int, default=10, metavar="N", help="show the first N")
    parser.add_argument("--failed", action="store_true", help="show the failed list instead")
    parser.add_argument("--retry", action="store_true", help="have the failed list fetched again")
    parser.add_argument("--drop", action="store_true", help="accept the failed list as done")
    parser.add_argument(
        "--reason", default="", metavar="WHY", help="only what failed for this reason, such as 503"
    )


def run(args: Namespace, project: Project) -> int:
    """Print the queue; with --failed the failed list, and return 1 if that is not empty."""
    target = target_of(project, args.target)
    if args.retry and args.drop:
        raise SettingError("expected --retry or --drop, found both")
    if args.retry:
        retried = target.retry(args.reason)
        show(args, {"retried": retried}, [f"{counted(retried, 'request')} put back"])
        return 0
    if args.drop:
        dropped = target.drop(args.reason)
        show(args, {"dropped": dropped}, [f"{counted(dropped, 'request')} dropped, as if done"])
        return 0
    facts = target.info()
    if "waiting" not in facts:
        raise no_requests(target.name)
    if args.failed:
        failed = (each for each in target.failed() if matches(each.reason, args.reason))
        shown = [*islice(failed, args.peek)]
        lines = _failed_table(shown) if shown else ["No request is on the failed list."]
        show(args, {"failed": [request.facts() for request in shown]}, lines)
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


def _failed_table(requests: list[FailedRequest]) -> Iterator[str]:
    shared = any(each.worker for each in requests)
    rows = (
        (
            *(each.reason, moment(each.date) if each.date else "", each.tries),
            *((each.worker.rpartition(":")[0],) if shared else ()),
            each.url or each.request.problem,
        )
        for each in requests
    )
    return table(rows, ("reason", "when", "runs", *(("worker",) if shared else ()), "URL"))


def _table(requests: list[WaitingRequest]) -> Iterator[str]:
    rows = (
        (each.priority, each.depth, each.method, each.callback or "parse", each.url or each.problem)
        for each in requests
    )
    return table(rows, ("priority", "depth", "method", "callback", "URL"))
