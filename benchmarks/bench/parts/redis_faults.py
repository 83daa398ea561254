"""Races between workers and replies that get lost: URLs granted twice, URLs lost."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from bench import redis_filters as filters
from bench import redis_server
from bench.fingerprints import stream, take
from bench.part import Column, Part, Row, Rows, Scale, Table
from bench.redis_filters import Candidate, Check
from bench.slow_network import LossyNetwork

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

    from support.localredis import LocalRedis

WORKERS: Final = 4
STEP: Final = 20
"""Checks between two moments at which all workers wait for each other, if they go one by one."""
EVERY: Final = 20
"""Of so many commands that check one gets no reply."""
KEY: Final = "bench"
LEFT_OUT: Final = (filters.OURS_ASKING, filters.OURS_BATCHED_ASKING)
"""The worker's memory makes no difference here: no worker asks twice."""


def steps(items: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    """Yield the items, some at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def race(url: str, candidate: Candidate, items: int) -> Row:
    """Let processes check the same items in step; count the grants of each."""
    fork = multiprocessing.get_context("fork")
    barrier, results = fork.Barrier(WORKERS), fork.SimpleQueue()
    workers = [
        fork.Process(target=_run_race, args=(url, candidate, items, barrier, results), daemon=True)
        for _ in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    grants = Counter[int]()
    for _ in workers:
        grants.update(results.get())
    for worker in workers:
        worker.join()
    return {
        "name": candidate.name,
        "workers": WORKERS,
        "items": items,
        "twice": sum(count > 1 for count in grants.values()),
        "lost": items - len(grants),
    }


def _run_race(url: str, candidate: Candidate, items: int, barrier: Barrier, results: Any) -> None:
    """Put the numbers of those items that this worker was granted."""
    known = take(stream(1), items)
    seen: list[bool] = []
    with candidate.open(url, KEY) as check:
        for some in steps(known, max(STEP, candidate.batch)):
            barrier.wait(60)
            seen += check(some)
        barrier.wait(60)
    results.put([number for number, was_seen in enumerate(seen) if not was_seen])


def lose_replies(server: LocalRedis, candidate: Candidate, items: int) -> Row:
    """Check items by one worker whose replies get lost now and then, and by a second one later."""
    known = take(stream(1), items)
    with ExitStack() as stack:
        network = stack.enter_context(LossyNetwork(server.port, candidate.commands, EVERY))
        check = stack.enter_context(candidate.open(network.url, KEY))
        verdicts, errors = _try(check, known, candidate.batch)
        lost_replies = network.lost
    with candidate.open(server.url, KEY) as check:
        again = check(known)
    return {
        "name": candidate.name,
        "items": items,
        "replies": lost_replies,
        "errors": errors,
        "lost": sum(verdict is True for verdict in verdicts),
        "twice": sum(
            verdict is False and not seen for verdict, seen in zip(verdicts, again, strict=True)
        ),
    }


def _try(check: Check, known: Sequence[bytes], batch: int) -> tuple[list[bool | None], int]:
    """Return the verdicts, None for a check that raised, and how many calls raised."""
    import redis

    verdicts: list[bool | None] = []
    errors = 0
    for some in steps(known, batch):
        try:
            verdicts += check(some)
        except (redis.RedisError, OSError):
            errors += 1
            verdicts += [None] * len(some)
    return verdicts, errors


def run(scale: Scale) -> Rows:
    """Let each candidate race, and lose replies to each."""
    races, replies = [], []
    with redis_server.local_server() as server, server.client() as client:
        for candidate in filters.candidates(module=redis_server.has_redisbloom(server)):
            if candidate.name in LEFT_OUT:
                continue
            client.flushall()
            races.append(race(server.url, candidate, scale.of(20_000, 2000) // candidate.trips))
            client.flushall()
            calls = scale.of(4000, 400) // candidate.trips
            items = min(calls * candidate.batch, scale.of(40_000, 4000))
            replies.append(lose_replies(server, candidate, items))
        described = redis_server.described(server)
    return {"server": described, "races": races, "replies": replies}


def findings(rows: Rows) -> list[str]:
    """Say whom which fault costs what."""
    twice = [
        f"{row['name']} grants {row['twice']:,} of {row['items']:,} URLs to more than one worker"
        for row in rows["races"]
        if row["twice"]
    ]
    lossy = {row["name"]: row for row in rows["replies"]}
    asking, batched = lossy[filters.OURS], lossy[filters.OURS_BATCHED]
    theirs = lossy[filters.SCRAPY_REDIS]
    said = [
        (
            f"In step {'; '.join(twice) or 'nobody grants a URL to more than one worker'}. Whoever"
            f" reads marks by one command and sets them by another has this race; one command or"
            f" script that does both has not."
        ),
        (
            f"{theirs['replies']:,} lost replies cost scrapy-redis {theirs['lost']:,} URLs:"
            f" redis-py sends the command again, and that finds the mark of its first try. All that"
            f" mark and answer by one command share this, and in a batch each lost reply takes up"
            f" to {filters.BATCH} URLs along."
        ),
        (
            f"Ours loses {asking['lost'] + batched['lost']} URLs and grants"
            f" {asking['twice'] + batched['twice']} twice for"
            f" {asking['replies'] + batched['replies']:,} lost replies: its calls are numbered, and"
            f" Redis repeats the answer to the same number."
        ),
    ]
    if not lossy[filters.BLOOMFILTER]["lost"]:
        said.append(
            "scrapy-redis-bloomfilter loses nothing here: it does not look at the answer when it"
            " sets bits. Its races are the price."
        )
    return said


PART = Part(
    name="redis-faults",
    title="Races and lost replies",
    method=f"""\
First table: {WORKERS} processes check and add the same new fingerprints in the same order, and wait
for each other every {STEP} checks, or before each batch. A URL that more than one is told is new
would be fetched twice; one that nobody is told is new would be lost.

Second table: one worker checks new fingerprints through a proxy that resets the connection instead
of a reply, after the server has carried the command out: one in {EVERY} of those commands that
check. All connect as scrapy-redis does, and redis-py sends a command again when its connection
breaks; ours tries again by itself. A URL is lost if the worker is told that it is seen, although
nobody was ever told that it is new. Afterwards a second worker checks the same on a sound network;
what is new again would be fetched twice. Fingerprints of a call that raises count as neither.

Filters are set up as for `redis-rates`. What makes many round trips for a check gets fewer checks.
""",
    packages=redis_server.PACKAGES,
    run=run,
    tables=(
        redis_server.TABLE,
        Table(
            "races",
            f"{WORKERS} workers in step",
            (
                Column("name", "filter"),
                Column("items", "URLs", ",d"),
                Column("twice", "granted twice", ",d"),
                Column("lost", "lost", ",d"),
            ),
        ),
        Table(
            "replies",
            "Lost replies",
            (
                Column("name", "filter"),
                Column("items", "URLs", ",d"),
                Column("replies", "lost replies", ",d"),
                Column("lost", "lost URLs", ",d"),
                Column("twice", "granted twice", ",d"),
                Column("errors", "calls that raised", ",d"),
            ),
        ),
    ),
    findings=findings,
    alone=False,
)
