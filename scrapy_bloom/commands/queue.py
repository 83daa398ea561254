"""``scrapy bloom queue``: the requests to be fetched."""

from __future__ import annotations

import shlex
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final

from scrapy_bloom.commands.output import moment, show, table
from scrapy_bloom.commands.places import no_requests
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.requests import Decoded, matches
from scrapy_bloom.commands.target import add_target, line_for, target_of
from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.crawl.outcomes import REDIRECTED
from scrapy_bloom.errors import SettingError
from scrapy_bloom.values import counted

EXAMPLE = "job --peek 5"

_LISTS: Final = {"failed": "on the failed list", "given-up": "given up"}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add_target(parser)
    parser.add_argument("--peek", type=int, default=10, metavar="N", help="show the first N")
    which = parser.add_mutually_exclusive_group()
    for kind, text in (
        ("failed", "show the failed list instead; exit with 1 if it is not empty"),
        ("unparsed", "show what no callback handled"),
        ("given-up", "show which of these were given up after three failed runs"),
    ):
        which.add_argument(f"--{kind}", dest="shown", action="store_const", const=kind, help=text)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--retry", action="store_true", help="have failed pages, or those chosen, fetched again"
    )
    what.add_argument(
        "--drop", action="store_true", help="accept failed pages, or those chosen, as done"
    )
    parser.add_argument(
        "--reason", default="", metavar="WHY", help="only for this reason, such as 503"
    )


def run(args: Namespace, project: Project) -> int:
    """Print the queue; with --failed the failed list, and return 1 if that is not empty."""
    target = target_of(project, args.target)
    if args.reason and not (args.shown or args.retry or args.drop):
        raise SettingError("--reason needs --failed, --unparsed, --given-up, --retry or --drop")
    if args.peek < 0:
        raise SettingError(f"--peek = {args.peek}: must be 0 or more")
    if args.retry or args.drop:
        count = target.settle(_chooser(args), put_back=args.retry)
        name, done = ("retried", "put back") if args.retry else ("dropped", "marked as done")
        text = f"{counted(count, 'request')} {done}"
        if args.reason and not count and (account := target.info().get("account")):
            reasons = ", ".join(map(shlex.quote, {**account["failures"], **account["decisions"]}))
            text += f"; --reason must be one of {reasons}" if reasons else ""
        show(args, {name: count}, [text])
        return 0 if count or not args.reason else 1
    facts = target.info()
    if "account" not in facts:
        raise no_requests(target.name)
    if args.shown:
        failed = (each for each in target.failed() if _is_shown(args, each[0]))
        shown = [*islice(failed, args.peek)]
        count = len(shown) + sum(1 for _ in failed)
        facts = {"count": count, args.shown: [_facts(*each) for each in shown]}
        show(args, facts, _failed_lines(args, shown, count))
        return 1 if count and args.shown == "failed" else 0
    first = target.upcoming(args.peek)
    waiting, in_flight = facts["account"]["waiting"], facts["account"]["in_flight"]
    summary = {name: facts[name] for name in ("later", "next_due")}
    summary |= {"waiting": waiting, "in_flight": in_flight}
    requests = counted(waiting + in_flight, "request")
    lines = [f"{requests} to be fetched, {in_flight:,} of them in flight"]
    if facts["later"]:
        due = moment(facts["next_due"])
        lines.append(f"{facts['later']:,} of them delayed; the next is due at {due}")
    if first:
        lines += ["", *_table(first)]
    show(args, {**summary, "first": [request._asdict() for request in first]}, lines)
    return 0


def _is_shown(args: Namespace, failed: FailedPage) -> bool:
    """Return whether a request is on the list that is shown."""
    is_there = {
        "failed": not failed.unparsed,
        "unparsed": failed.unparsed,
        "given-up": failed.is_given_up,
    }
    return is_there[args.shown] and matches(failed.kind, args.reason)


def _chooser(args: Namespace) -> Callable[[FailedPage], bool]:
    """Return what says which requests are retried or dropped.

    Without more that is what has failed, also what is given up for it.
    """
    if args.shown:
        return partial(_is_shown, args)
    if args.reason:
        return lambda each: matches(each.kind, args.reason)
    return lambda each: not each.unparsed or each.is_given_up


def _facts(failed: FailedPage, request: Decoded) -> dict[str, Any]:
    known = {"reason": failed.kind, **failed._asdict(), **request._asdict()}
    unshown = "kind", "body", "not_before", "way"
    return {name: known[name] for name in known if name not in unshown}


def _failed_lines(
    args: Namespace, shown: list[tuple[FailedPage, Decoded]], count: int
) -> Iterator[str]:
    why = ("--reason", args.reason) if args.reason else ()
    which = f"--{args.shown}"
    if not count:
        yield f"No request is {_LISTS.get(args.shown, args.shown)}."
        return
    if shown:
        yield from _failed_table(shown)
        yield ""
    if count > len(shown):
        line = line_for(args, "queue", which, *why, "--peek", str(count))
        yield f"{len(shown):,} of {count:,} shown. All: {line}"
    if args.shown == "failed":
        yield "The next run fetches them again, until they have failed in three runs."
    else:
        line = line_for(args, "queue", "--retry", which, *why)
        yield f"They are not fetched again by themselves. To fetch them: {line}"


def _failed_table(shown: list[tuple[FailedPage, Decoded]]) -> Iterator[str]:
    shared = any(failed.worker for failed, _ in shown)
    rows = (
        (
            *(failed.kind, moment(failed.date) if failed.date else "", failed.tries),
            *((failed.worker.rpartition(":")[0],) if shared else ()),
            (request.url or request.problem)
            + (f" → {failed.message}" if failed.kind == REDIRECTED else ""),
        )
        for failed, request in shown
    )
    return table(rows, ("reason", "when", "failed runs", *(("worker",) if shared else ()), "URL"))


def _table(requests: list[Decoded]) -> Iterator[str]:
    now = time.time()
    some_wait = any(each.not_before > now for each in requests)
    rows = (
        (
            *(each.priority, each.depth, each.method, each.callback or "parse"),
            *((moment(each.not_before) if each.not_before > now else "",) if some_wait else ()),
            each.url or each.problem,
        )
        for each in requests
    )
    not_before = ("not before",) if some_wait else ()
    return table(rows, ("priority", "depth", "method", "callback", *not_before, "URL"))
