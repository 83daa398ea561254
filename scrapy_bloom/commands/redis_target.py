"""A filter in Redis, and the requests beside it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from scrapy_bloom.commands.moving import copy_shard, read_bits, requests_stay, write_bits
from scrapy_bloom.commands.requests import Waiting, WaitingRequest, readable, summed
from scrapy_bloom.commands.target import (
    Contents,
    Finding,
    Information,
    NewFilter,
    Owner,
    SliceInfo,
    Target,
    Worker,
)
from scrapy_bloom.errors import BloomError, StateError
from scrapy_bloom.filter.sizing import BLOCK_BYTES, MAX_HASHES
from scrapy_bloom.local.job import Identity
from scrapy_bloom.options import (
    CAPACITY,
    ERROR_RATE,
    EXACT,
    MIN_ERROR_RATE,
    REDIS_LAYOUT,
    REDIS_SHARDS,
    WINDOW,
    OnBackendError,
)
from scrapy_bloom.redis import worker as pace
from scrapy_bloom.redis.client import Target as Server
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.filter import RedisFilter, plans
from scrapy_bloom.redis.plan import Plan, bucket_bytes, shard_key
from scrapy_bloom.redis.reader import Reader, State
from scrapy_bloom.redis.shard import PROGRAM, Call, Shard, Surprise, Taken, delete
from scrapy_bloom.redis.worker import Worker as Link

if TYPE_CHECKING:
    from scrapy_bloom.commands.output import Output, Told

_AT_ONCE: Final = 500
_LOOKS: Final = 10  # at a queue that workers change
_LOOK: Final = 1.0  # seconds between two looks whether a lease is over
_RENEWED: Final = 0.2  # seconds by which the end of a lease moves when a worker lives
_OURS: Final = rb"(?::\d+)?(?::\{.*\})?:(?:queue|taken|failed|trial|([\da-f-]+)\.\d+\.\w+)"


class RedisTarget(Target):
    """A filter under a key of a Redis server or cluster.

    :param server: the server.
    :param key: the key of the filter.
    :param timeout: most seconds that Redis may hold up one call.
    """

    def __init__(self, server: Server, key: str, timeout: float) -> None:
        self.server, self.key, self.timeout = server, key, timeout
        self.name = f"Redis at {server.where()}, key {key}"

    @contextmanager
    def link(self) -> Iterator[Link]:
        """Connect."""
        link = Link(self.server, self.timeout)
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
            return link.client.type(self.key) != b"none" and not _is_note(link, self.key)

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

    def info(self) -> Information:
        """Return what is known of the filter."""
        with self.link() as link:
            states = self.states(link)
            plan, now = states[0].plan, float(link.client.time()[0])
            names = {name: end > now for state in states for name, end in state.leases.items()}
            has_queue = bool(plan.order)
            return Information(
                self.name,
                "redis",
                Reader(link, self.key).info(),
                MAX_HASHES if plan.layout == "bitmap" else 1,
                plan.digests,
                [_described(state, number) for state in states for number in range(_slices(state))],
                plan.fingerprinter,
                json.loads(plan.canonical),
                shards=plan.shards,
                project=plan.project,
                spider=plan.spider,
                let_through=sum(one.again for state in states for one in state.slices),
                waiting=sum(state.waiting for state in states) if has_queue else None,
                under_way=sum(state.taken for state in states) if has_queue else None,
                failed=sum(state.failed for state in states) if has_queue else None,
                workers=[Worker(*each) for each in names.items()],
                layout=plan.layout,
            )

    def check(self) -> Iterator[Finding]:
        """Compare what the header counts with what is there."""
        with self.link() as link:
            try:
                states = self.states(link)
            except BloomError as error:
                if not self.exists() and not self.leftovers():
                    raise
                yield Finding("bad", "filter", str(error))
                return
            for state in states:
                yield from _check_slices(link.client, state)
                yield from _check_queue(link.client, state)
            yield from _check_workers(states, float(link.client.time()[0]))
            if left := self.leftovers():
                found = f"{len(left):,} keys of filters that are gone, such as {left[0]}"
                advice = "'scrapy bloom delete --leftovers' removes them."
                yield Finding("note", "leftovers", found, advice)
            policy = link.client.config_get("maxmemory-policy").get("maxmemory-policy", "")
            if policy.startswith("allkeys"):
                found = f"may throw the filter away when its memory is full ({policy})"
                advice = "Set maxmemory-policy to noeviction, or use a server of its own."
                yield Finding("bad", "server", found, advice)

    @contextmanager
    def asking(self) -> Iterator[_Asked]:
        """Connect, to ask the filter where it is."""
        with self.link() as link:
            yield _Asked(Reader(link, self.key), _identity(self.states(link)[0].plan))

    def requests_waiting(self) -> str:
        """Return the key, if requests wait or workers have some."""
        with self.link() as link:
            states = Reader(link, self.key).shards()
            return self.name if any(one.waiting or one.taken for one in states) else ""

    def queue(
        self, output: Output, *, peek: int, most: int, failed: bool, newest_first: bool
    ) -> Waiting:
        """Return what waits, or what is on the failed list."""
        del newest_first  # the server has them in order
        with self.link() as link:
            states = self.states(link)
            if not states[0].plan.order:
                raise StateError(
                    f"{self.name}: found no requests, expected those of scrapy_bloom.Scheduler."
                    f" scrapy-redis keeps its own queue, which is not read here."
                )
            total = sum(state.waiting for state in states)
            under_way = sum(state.taken for state in states)
            reader = Reader(link, self.key)
            if failed:
                given_up = [*map(_shown, islice(reader.requests("failed"), peek))]
                found = summed(self.name, total, under_way, (), 0)
                return replace(found, failed=given_up)
            with output.progress("reading requests", min(total, most), "requests") as told:
                taken = islice(reader.requests("queue"), most)
                waiting: Iterable[WaitingRequest] = (_shown(one, told) for one in taken)
                if len(states) > 1:  # each has an order of its own
                    waiting = sorted(waiting, key=lambda one: -one.priority)
                return summed(self.name, total, under_way, waiting, peek)

    def retry(self) -> int:
        """Put the failed list back, some at a time."""
        count = 0
        with self.link() as link:
            for state in self.states(link):
                shard = Shard(link, state.key, state.plan, self.server.words)
                try:
                    left = state.failed
                    while left:
                        report = shard.call(Call(retry=min(left, _AT_ONCE))).report
                        count += left - report.failed
                        left = min(left, report.failed)
                except Surprise as surprise:
                    raise StateError(f"{self.name}: {surprise.kind.value}. Try again.") from None
                finally:
                    shard.leave()
        return count

    # Changing

    @contextmanager
    def changing(self, new: NewFilter | None) -> Iterator[_Changed]:
        """Join the workers of the filter; what is changed is there at once."""
        with self.link() as link:
            if new is None or self.exists():
                made_for = [state.plan for state in self.states(link)]
            else:
                made_for = plans_of(new)
        with self.opened(made_for) as shared:
            yield _Changed(shared, _identity(made_for[0]))

    @contextmanager
    def opened(self, made_for: Sequence[Plan]) -> Iterator[RedisFilter]:
        """Become a worker of the filter, or make it."""
        close = OnBackendError.CLOSE
        with RedisFilter(
            self.server, self.key, made_for, on_error=close, timeout=self.timeout
        ) as shared:
            yield shared

    def read(self, output: Output) -> Contents:
        """Read the bits; a page that was forgotten has one bit less."""
        with self.link() as link:
            return read_bits(self.name, link, self.states(link), output)

    def write(self, contents: Contents, owner: Owner, output: Output) -> None:
        """Send the bits, and at last the header."""
        with self.link() as link:
            self.check_free(link)
            write_bits(self.name, self.key, link, contents, owner, output)

    def copy_to(self, target: RedisTarget, spider: str, output: Output) -> list[str]:
        """Copy a filter of any layout to another place in Redis; return what users should know.

        :param spider: whose filter it becomes; empty for that whose it is.
        """
        with self.link() as here, target.link() as there:
            target.check_free(there)
            states = self.states(here)
            for state in reversed(states):  # the first one leads to the others
                key = target.key + state.key[len(self.key) :]
                with output.progress(f"copying {state.key}", None, "keys") as told:
                    copy_shard(here, there, state, key, spider, told)
        return requests_stay(self.name, states)

    def check_free(self, link: Link) -> None:
        """Look whether nothing is there.

        :raises StateError: if something is.
        """
        kind = link.client.type(self.key)
        if kind != b"none" and not _is_note(link, self.key):
            raise self.occupied(f"a {kind.decode()}")

    def delete(self, output: Output) -> None:
        """Delete header and requests at one moment, then the rest.

        A worker that was killed has its lease for up to half a minute: that is waited for.
        """
        with self.link() as link:
            count = self.states(link)[0].plan.shards
            for number in reversed(range(count)):  # the first one leads to the others
                self._delete(link, shard_key(self.key, number), output)

    def _delete(self, link: Link, key: str, output: Output) -> None:
        ends: dict[str, float] = {}
        while used := delete(link, key):
            now = time.monotonic()
            for worker, left in used.items():
                if worker not in ends:
                    output.note(
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

    def leftovers(self) -> list[str]:
        """Return the keys of filters that are gone."""
        with self.link() as link:
            return [key.decode() for key in self._leftovers(link)]

    def delete_leftovers(self) -> int:
        """Delete them."""
        with self.link() as link:
            found = self._leftovers(link)
            for start in range(0, len(found), _AT_ONCE):
                for key in found[start : start + _AT_ONCE]:
                    link.client.unlink(key)
        return len(found)

    def _leftovers(self, link: Link) -> list[bytes]:
        """List what looks like a key of this filter and belongs to no header that is there."""
        ours = re.compile(re.escape(self.key.encode()) + _OURS, re.DOTALL)
        shard = re.compile(re.escape(self.key.encode()) + rb":\d+")
        live: dict[str, bytes] = {}
        found = []
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", self.key) + ":*"
        names = sorted(set(link.client.scan_iter(pattern, count=1000)))
        for state in Reader(link, self.key).shards():
            live[beginning(state.key)] = state.epoch.encode()
            dropped = link.client.hget(state.key, "dropped") or b""
            live[beginning(state.key)] += b" " + dropped
        for name in names:
            match = ours.fullmatch(name)
            whose = next((one for one in live if name.startswith(one.encode())), None)
            if match and whose:
                gone = bool(match[1]) and match[1] not in live[whose]
            else:  # a shard's header counts as left if the first one is gone
                gone = bool(match) or bool(
                    not live and shard.fullmatch(name) and _is_header(link, name)
                )
            if gone:
                found.append(name)
        return found

    def _without_filter(self, link: Link) -> StateError:
        """Return what to say where there is no filter: that requests are there, if they are."""
        if not (left := self._leftovers(link)):
            return self.missing()
        waiting = link.client.zcard(f"{beginning(self.key)}queue")
        return StateError(
            f"{self.name}: found no filter, only {len(left):,} keys that one has left, with"
            f" {waiting:,} requests that wait. A crawl with scrapy_bloom.Scheduler takes them up;"
            f" 'scrapy bloom delete' removes them."
        )


class _Asked:
    """The marks of a filter, read without being a worker."""

    def __init__(self, reader: Reader, identity: Identity) -> None:
        self.identity = identity
        self._reader = reader

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        return self._reader.contains_many([*fingerprints])

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        raise NotImplementedError

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        raise NotImplementedError


class _Changed:
    """A worker that only marks and forgets."""

    def __init__(self, shared: RedisFilter, identity: Identity) -> None:
        self.identity = identity
        self.contains_many = shared.contains_many
        self.add_many = shared.add_many
        self.forget_many = shared.forget_many


def plans_of(new: NewFilter) -> list[Plan]:
    """Return the plan of each shard of a new filter."""
    settings = new.settings
    return plans(
        capacity=settings[CAPACITY],
        error_rate=MIN_ERROR_RATE if settings[EXACT] else settings[ERROR_RATE],
        digests=new.digests,
        fingerprinter=new.identity.fingerprinter,
        canonical=json.dumps(new.identity.made_by, sort_keys=True),
        window=settings[WINDOW],
        layout=settings[REDIS_LAYOUT],
        shards=settings[REDIS_SHARDS],
        project=new.owner.project,
        spider=new.owner.spider,
        order=new.owner.order,
    )


def _identity(plan: Plan) -> Identity:
    return Identity(plan.spider, plan.fingerprinter, json.loads(plan.canonical))


def _is_header(link: Link, key: str | bytes) -> bool:
    is_hash = link.client.type(key) == b"hash"
    return bool(is_hash and link.client.hget(key, "program") == PROGRAM)


def _is_note(link: Link, key: str) -> bool:
    """Return whether all that is there is the note that a filter was deleted."""
    return _is_header(link, key) and not link.client.hexists(key, "epoch")


def _slices(state: State) -> int:
    return len(state.slices)


def _described(state: State, number: int) -> SliceInfo:
    one = state.slices[number]
    if state.plan.layout == "bitmap":
        size = one.blocks * BLOCK_BYTES
    else:
        size = bucket_bytes(one, one.capacity)
    return SliceInfo(state.plan.shard, one.capacity, one.items, size, one.error_rate)


def _shown(one: Taken, told: Told = int) -> WaitingRequest:
    told(1)
    return readable(one.body, one.priority)


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
    start, counts, missing = beginning(state.key), [0, 0, 0], 0
    for _ in range(_LOOKS):
        *noted, version = client.hmget(state.key, "waiting", "taken", "failed", "version")
        counts = [client.zcard(f"{start}queue"), client.hlen(f"{start}taken")]
        counts.append(client.hlen(f"{start}failed"))
        if client.hget(state.key, "version") == version:  # nobody has changed them meanwhile
            there = zip(map(int, noted), counts, strict=True)
            missing = sum(max(0, counted - found) for counted, found in there)
            break
    waiting, taken, failed = counts
    yield Finding("good", "queue", f"{waiting:,} requests wait, {taken:,} are in flight")
    if missing:
        advice = "The next worker notices, and the crawl starts over. The server must not evict."
        yield Finding("bad", "queue", f"{missing:,} requests have vanished", advice)
    if failed:
        advice = "'scrapy bloom queue --failed' shows them, --retry puts them back."
        yield Finding("note", "failed", f"{failed:,} requests on the failed list", advice)


def _check_workers(states: Sequence[State], now: float) -> Iterator[Finding]:
    leases = {name: end for state in states for name, end in state.leases.items()}
    silent = [name for name, end in leases.items() if end <= now]
    yield Finding("good", "workers", f"{len(leases) - len(silent)} at work")
    if silent:
        yield Finding(
            "note",
            "workers",
            f"{len(silent)} without a lease: {', '.join(silent[:5])}",
            f"They were killed, or are frozen. A worker that runs takes back what they had, after"
            f" {pace.LEASE:.0f} s.",
        )
