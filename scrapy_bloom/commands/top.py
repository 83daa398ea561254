"""``scrapy bloom top``: watch a crawl."""

from __future__ import annotations

import io
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

from scrapy_bloom.commands.output import show
from scrapy_bloom.commands.places import no_requests
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.target import Target, add_target, target_of
from scrapy_bloom.errors import BloomError, StateError
from scrapy_bloom.values import number

EXAMPLE = "job --once"

_LOOKS: Final = 40  # that are kept, for the sparkline
_RECENT: Final = 6  # from the first to the last of so many rates are measured

_read_interval: Final = number(float, 0.1, 3600, "seconds from 0.1 to 3600")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add_target(parser)
    parser.add_argument("--once", action="store_true", help="print one view, after two looks")
    parser.add_argument("--interval", default=2, metavar="SECONDS", help="between looks: 2")


def run(args: Namespace, project: Project) -> int:
    """Show a crawl until Ctrl-C; with --once, as JSON and in a pipe only once."""
    # Imported only here: rich is an extra.
    from scrapy_bloom.commands.screen import as_plain_text, draw

    interval = _read_interval("--interval", args.interval)
    target = target_of(project, args.target)
    facts = target.look()
    if "account" not in facts:
        raise no_requests(target.name)
    looks = _looks(target, facts, interval)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal has bars
    dumb = os.environ.get("TERM") in ("dumb", "unknown")
    if sys.stdout.isatty() and not (args.once or args.json or dumb):
        draw(looks)
        return 0
    _, (facts, problem) = islice(looks, 2)
    if problem:
        raise StateError(problem)
    show(args, facts, as_plain_text(facts))
    return 0


def _looks(
    target: Target, facts: dict[str, Any], interval: float
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the facts of each look; if one has failed, those of the last one, and why.

    :param facts: of the first look.
    """
    rates, problem = Rates(), ""
    facts = rates.add(facts)
    while True:
        yield facts, problem
        time.sleep(interval)
        try:
            facts, problem = rates.add(target.look()), ""
        except BloomError as error:  # it may come back
            problem = str(error)


class Look(NamedTuple):
    """What rates are measured with.

    Attributes:
        at: when it was, by ``time.monotonic()``.
        done: how many pages had ended, and not failed.
        waiting: how many requests waited.
        taken: ids of the requests that each worker had.
        ended: how many of those that each worker had at the look before had ended.
    """

    at: float
    done: int
    waiting: int
    taken: Mapping[str, set[bytes]]
    ended: Counter[str]


class Rates:
    """Measures rates between looks."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque(maxlen=_LOOKS)

    def add(self, facts: dict[str, Any], at: float | None = None) -> dict[str, Any]:
        """Return the facts with the rates since earlier looks, if there were any.

        Nobody counts the pages of a worker, so its rate is its share of the requests that were
        there at one look and had ended at the next.
        """
        account, workers = facts["account"], facts.get("workers", ())
        done, taken = account["done"] + account["unparsed"], facts.pop("taken", {})
        if self._looks and done < self._looks[-1].done:  # it has started over
            self._looks.clear()
        before = self._looks[-1].taken if self._looks else {}
        alive = {row["name"] for row in workers if not row["dead"]} & {*before}
        ended = Counter({name: len(before[name] - taken.get(name, set())) for name in alive})
        at = time.monotonic() if at is None else at
        self._looks.append(Look(at, done, account["waiting"], taken, ended))
        if len(self._looks) == 1:
            return facts
        recent = [*self._looks][-_RECENT:]
        first, last = recent[0], recent[-1]
        rate = (last.done - first.done) / (last.at - first.at)
        gone = sum((look.ended for look in recent[1:]), Counter[str]())
        for row in workers:
            row["pages_per_second"] = rate * gone[row["name"]] / max(1, gone.total())
        return facts | {
            "pages_per_second": rate,
            "history": [(b.done - a.done) / (b.at - a.at) for a, b in pairwise(self._looks)],
            "waiting_per_minute": 60 * (last.waiting - first.waiting) / (last.at - first.at),
        }
