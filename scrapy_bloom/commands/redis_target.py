"""A filter in Redis, and the requests beside it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from scrapy_bloom.commands.places import Finding, Marks, described, occupied
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.requests import WaitingRequest, readable
from scrapy_bloom.errors import BloomError, StateError
from scrapy_bloom.filter.sizing import MAX_HASHES
from scrapy_bloom.local.job import Identity
from scrapy_bloom.options import REDIS_TIMEOUT, OnBackendError
from scrapy_bloom.redis.client import Target as Server
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.plan import Plan, shard_key
from scrapy_bloom.redis.project import plans_of
from scrapy_bloom.redis.reader import Reader, State, describe
from scrapy_bloom.redis.shard import PROGRAM, Call, Shard, Surprise, delete
from scrapy_bloom.redis.worker import Worker as Link

_TIMEOUT: Final = 10.0  # seconds for a call, at least: nobody waits for a page meanwhile
_AT_ONCE: Final = 500
_LOOKS: Final = 10  # at a queue that workers change
_LOOK: Final = 1.0  # seconds between two looks whether a lease is over
_RENEWED: Final = 0.2  # seconds by which the end of a lease moves when a worker lives
_OURS: Final = rb"(:\d+)?((?::\{.*\})?:(?:queue|taken|failed|trial|[\da-f-]+\.\d+\.\w+))?"


class RedisTarget:
    """A filter under a key of a Redis server or cluster.

    Methods that look create and change nothing. All raise :class:`BloomError` if the place cannot
    be used, or has no filter.

    :param server: the server.
    :param key: the key of the filter.
    :param project: how long a call may take, and what a new filter is like.

    Attributes:
        name: what people call it.
    """

    def __init__(self, server: Server, key: str, project: Project) -> None:
        self.server, self.key = server, key
        self.name = f"Redis at {server.where()}, key {key}"
        self._timeout = max(_TIMEOUT, project.settings[REDIS_TIMEOUT])

    @contextmanager
    def link(self) -> Iterator[Link]:
        """Connect."""
        link = Link(self.server, self._timeout)
        link.connect()
        try:
            with link.explained():
                yield link
        finally:
            link.close()

    # Looking

    def exists(self) -> bool:
        """Return whether anything is under the key, but for the note that it was deleted."""
        with self.link() as link:
            return link.client.type(self.key) != b"none" and not self._is_note(link)

    def states(self, link: Link) -> list[State]:
        """Return the state of each shard.

        :raises StateError: if there is none, or if some are gone.
        """
        states = Reader(link, self.key).shards()
        if not states:
            raise self._without_filter(link)
        if len(states) < states[0].plan.shards:
            raise StateError(
                f"{self.name}: found {len(states)} of {states[0].plan.shards} shards. A worker that"
                f" is started makes the others anew; 'scrapy bloom delete' removes what is there."
            )
        return states

    def info(self) -> dict[str, object]:
        """Return what is known of the filter."""
        with self.link() as link:
            states = self.states(link)
            plan, now = states[0].plan, float(link.client.time()[0])
            ends = {name: end for state in states for name, end in state.leases.items()}
            alive = sum(end > now for end in ends.values())
            return described(
                self.name,
                "redis",
                describe(states),
                identity_in(plan),
                exact=plan.exact or None,
                project=plan.project,
                hashes=MAX_HASHES if plan.layout == "bitmap" else 1,
                forgotten=sum(one.again for state in states for one in state.slices),
                waiting=sum(state.waiting for state in states) if plan.order else None,
                in_flight=sum(state.taken for state in states) if plan.order else None,
                failed=sum(state.failed for state in states) if plan.order else None,
                layout=plan.layout,
                shards=plan.shards,
                workers_alive=alive,
                workers_silent=len(ends) - alive,
            )

    def check(self) -> Iterator[Finding]:
        """Compare what the header counts with what is there."""
        with self.link() as link:
            try:
                states = self.states(link)
            except BloomError as error:
                if not self.remains():
                    raise
                yield Finding("bad", "filter", str(error))
                return
            for state in states:
                yield from _check_slices(link.client, state)
                yield from _check_queue(link.client, state)

    @contextmanager
    def asking(self) -> Iterator[Marks]:
        """Connect, to ask the filter what a crawl would call seen."""
        with self.link() as link:
            identity = identity_in(self.states(link)[0].plan)
            yield identity, Reader(link, self.key).contains_many

    def requests_waiting(self) -> str:
        """Return the key, if requests wait or workers have some."""
        with self.link() as link:
            states = Reader(link, self.key).shards()
            return self.name if any(one.waiting or one.taken for one in states) else ""

    @contextmanager
    def requests(
        self, *, failed: bool, newest_first: bool
    ) -> Iterator[tuple[int, int, Iterator[WaitingRequest]]]:
        """Yield how many requests wait, how many are in flight, and those that wait.

        :param failed: whether to yield those on the failed list instead.
        :param newest_first: of no account: the server has them in order, in each shard.
        """
        del newest_first
        with self.link() as link:
            states = self.states(link)
            if not states[0].plan.order:
                raise StateError(
                    f"{self.name}: found no requests, expected those of scrapy_bloom.Scheduler."
                    f" scrapy-redis keeps its own queue, which is not read here."
                )
            found = Reader(link, self.key).requests("failed" if failed else "queue")
            shown = (readable(one.body, one.priority) for one in found)
            counts = sum(one.waiting for one in states), sum(one.taken for one in states)
            yield *counts, shown

    # Changing

    def retry(self) -> int:
        """Put the failed list back into the queue, some at a time; return how many they were."""
        count = 0
        with self.link() as link:
            for state in self.states(link):
                shard = Shard(link, state.key, state.plan, self.server.words)
                try:
                    left = state.failed
                    while left:
                        counts = shard.call(Call(retry=min(left, _AT_ONCE))).counts
                        count += left - counts.failed
                        left = min(left, counts.failed)
                except Surprise as surprise:
                    raise StateError(f"{self.name}: {surprise.kind.value}. Try again.") from None
                finally:
                    shard.leave()
        return count

    @contextmanager
    def changing(self, project: Project, *, forget: bool) -> Iterator[Marks]:
        """Join the workers to add or to forget, which counts at once; make a filter to add to."""
        with self.link() as link:
            if forget or self.exists():
                made_for = [state.plan for state in self.states(link)]
            else:
                made_for = self.plans(project, requests=project.keeps_requests)
        with self.opened(made_for) as shared:
            yield identity_in(made_for[0]), shared.forget_many if forget else shared.add_many

    def plans(self, project: Project, *, requests: bool) -> list[Plan]:
        """Return the plan of each shard of a new filter.

        :param requests: whether those of the spider will be beside it.
        """
        owner = project.owner if requests else {}
        made_by = project.identity.made_by
        return plans_of(project.settings, project.fingerprinter, made_by, **owner)

    @contextmanager
    def opened(self, made_for: Sequence[Plan]) -> Iterator[RedisFilter]:
        """Become a worker of the filter, or make it."""
        close = OnBackendError.CLOSE
        with RedisFilter(
            self.server, self.key, made_for, on_error=close, timeout=self._timeout
        ) as shared:
            yield shared

    def check_free(self, link: Link) -> None:
        """Look whether nothing is there.

        :raises StateError: if something is.
        """
        kind = link.client.type(self.key)
        if kind != b"none" and not self._is_note(link):
            raise occupied(self.name, f"a {kind.decode()}")

    def remains(self) -> int:
        """Return how many shards there are, or else how many keys a filter has left."""
        with self.link() as link:
            return len(Reader(link, self.key).shards() or self._leftovers(link))

    def delete(self) -> Iterator[str]:
        """Delete header and requests at one moment, then the rest; yield what is waited for.

        A worker that was killed has its lease for up to half a minute: that is waited for. A
        ``delete`` that was killed can be made again.

        :raises StateError: if a worker uses it, or what is there is not ours. Nothing is deleted.
        """
        with self.link() as link:
            states = Reader(link, self.key).shards()
            for number in reversed(range(states[0].plan.shards if states else 0)):
                yield from self._delete(link, shard_key(self.key, number))  # the first one leads
            left = self._leftovers(link)
            if not (states or left):
                raise Reader(link, self.key).missing()
            for name in left:
                link.client.unlink(name)

    def _delete(self, link: Link, key: str) -> Iterator[str]:
        ends: dict[str, float] = {}
        while used := delete(link, key):
            now = time.monotonic()
            for worker, left in used.items():
                if worker not in ends:
                    yield (
                        f"Worker {worker} has a lease for {left:.0f} s. Waiting until it is over or"
                        f" renewed."
                    )
                elif now + left > ends[worker] + _RENEWED:
                    raise StateError(
                        f"{self.name}: worker {worker} uses this filter, and it was not deleted."
                        f" Stop the crawl first."
                    )
                ends.setdefault(worker, now + left)
            time.sleep(min(_LOOK, *used.values()))

    # Within

    def _is_note(self, link: Link) -> bool:
        """Return whether all that is there is the note that a filter was deleted."""
        if link.client.type(self.key) != b"hash":
            return False
        program, epoch = link.client.hmget(self.key, "program", "epoch")
        return program == PROGRAM and epoch is None

    def _leftovers(self, link: Link) -> list[bytes]:
        """List what looks like a key of this filter, if there is no header; else nothing."""
        if Reader(link, self.key).shards():
            return []
        ours = re.compile(re.escape(self.key.encode()) + _OURS, re.DOTALL)
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", self.key) + ":*"
        numbers: dict[bytes, int | None] = {}
        found = []
        for name in sorted(set(link.client.scan_iter(pattern, count=1000))):
            if not (match := ours.fullmatch(name)):
                continue
            shard, rest = match.groups()
            if shard not in numbers:
                numbers[shard] = _shard_number(link, self.key + shard.decode()) if shard else None
            # A filter of its own may have a key that is named as a shard of this one would be.
            if numbers[shard] != 0 and (rest or numbers[shard]):
                found.append(name)
        return found

    def _without_filter(self, link: Link) -> StateError:
        """Return what to say where there is no filter: that requests are there, if they are."""
        if not (left := self._leftovers(link)):
            return Reader(link, self.key).missing()
        waiting = link.client.zcard(f"{beginning(self.key)}queue")
        return StateError(
            f"{self.name}: found no filter, only {len(left):,} keys that one has left, with"
            f" {waiting:,} requests that wait. A crawl with scrapy_bloom.Scheduler takes them up;"
            f" 'scrapy bloom delete' removes them."
        )


def identity_in(plan: Plan) -> Identity:
    """Return what the marks of a filter belong to."""
    return Identity(plan.spider, plan.fingerprinter, json.loads(plan.canonical))


def _shard_number(link: Link, key: str) -> int | None:
    """Return the number of the shard under a key, 0 also for what is not ours; None for nothing."""
    try:
        states = Reader(link, key).shards()
    except StateError:
        return 0
    return states[0].plan.shard if states else None


def _check_slices(client: Any, state: State) -> Iterator[Finding]:
    """Count the keys of each slice. A key is made with the first item that falls into it."""
    start = f"{beginning(state.key)}{state.epoch}."
    for one in state.slices:
        name = f"slice {one.number}" + (f" of shard {state.plan.shard}" if state.plan.shard else "")
        pipeline = client.pipeline(transaction=False)
        for key in range(one.keys):
            pipeline.exists(f"{start}{one.number}.{key}")
        there = sum(pipeline.execute())
        # With so many items in each key on average, none of them would be empty by chance.
        sure = one.items > one.keys * (40 + one.keys.bit_length())
        found = f"{one.items:,} items counted in {there:,} of {one.keys:,} keys"
        if one.items and (there == 0 or (sure and there < one.keys)):
            advice = "The server has lost them: their pages are fetched again. It must not evict."
            yield Finding("bad", name, found, advice)
        else:
            yield Finding("good", name, found)


def _check_queue(client: Any, state: State) -> Iterator[Finding]:
    if not state.plan.order:
        return
    start, counts, lost = beginning(state.key), [0, 0, 0], 0
    for _ in range(_LOOKS):
        *noted, version = client.hmget(state.key, "waiting", "taken", "failed", "version")
        counts = [client.zcard(f"{start}queue"), client.hlen(f"{start}taken")]
        counts.append(client.hlen(f"{start}failed"))
        if client.hget(state.key, "version") == version:  # nobody has changed them meanwhile
            there = zip(map(int, noted), counts, strict=True)
            lost = sum(max(0, counted - found) for counted, found in there)
            break
    waiting, taken, failed = counts
    yield Finding("good", "queue", f"{waiting:,} requests wait, {taken:,} are in flight")
    if lost:
        advice = "The next worker notices, and the crawl starts over. The server must not evict."
        yield Finding("bad", "queue", f"{lost:,} requests have vanished", advice)
    if failed:
        advice = "'scrapy bloom queue --failed' shows them, --retry puts them back."
        yield Finding("note", "failed", f"{failed:,} requests on the failed list", advice)
