"""Crawls whose queue is in Redis, near and far: how they are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.harness import in_turn
from bench.slow_network import SlowNetwork

if TYPE_CHECKING:
    from support.localredis import LocalRedis

    from bench.workers import Crawled, Workers

Candidates = Mapping[str, Mapping[str, object]]
"""Name -> settings of what is compared."""


@dataclass(frozen=True)
class Way:
    """How far Redis is, and how much is crawled over that distance.

    Attributes:
        delay: seconds added to a round trip.
        pages: of each candidate's crawl: the more round trips, the fewer.
        rounds: how often they crawl.
        workers: processes.
    """

    delay: float
    pages: Mapping[str, int]
    rounds: int = 1
    workers: int = 1


def pages_of(candidates: Candidates, *pages: int) -> dict[str, int]:
    """Return how many pages each candidate crawls."""
    return dict(zip(candidates, pages, strict=True))


def crawl_in_turn(
    workers: Workers,
    server: LocalRedis,
    candidates: Candidates,
    way: Way,
    site: Mapping[str, int],
    once: Sequence[str] = (),
) -> dict[str, list[Crawled]]:
    """Crawl with every candidate in turn.

    :param site: how many links a page has, and how many of them are new.
    :param once: candidates that crawl in the first round only.
    """
    from bench.workers import GrowingSite

    crawls: dict[str, list[Crawled]] = {name: [] for name in candidates}
    with ExitStack() as stack:
        url = server.url
        if way.delay:
            url = stack.enter_context(SlowNetwork(server.port, way.delay)).url
        for number in range(way.rounds):
            names = [name for name in candidates if not number or name not in once]
            for name in in_turn(names, number):
                with GrowingSite(**site) as growing:
                    crawls[name].append(
                        workers.crawl(growing, server, url, candidates[name], way.pages[name])
                    )
    return crawls


def warm_up(
    workers: Workers, server: LocalRedis, candidates: Candidates, site: Mapping[str, int]
) -> None:
    """Crawl once with every candidate: the first crawl of a process fills its caches."""
    crawl_in_turn(workers, server, candidates, Way(0.0, dict.fromkeys(candidates, 30)), site)
