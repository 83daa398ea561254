"""Reads what is in Redis under a key, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from scrapy_bloom.errors import StateError
from scrapy_bloom.filter.info import FilterInfo, filter_info
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.plan import Plan, SliceRow, place, read_slices, shard_key
from scrapy_bloom.redis.shard import FORMAT, PROGRAM, Surprise, Taken, ask
from scrapy_bloom.redis.worker import Worker

_AT_ONCE: Final = 100


@dataclass(frozen=True)
class State:
    """A shard at one moment.

    Attributes:
        key: of its header.
        epoch: identifies the filter that is there.
        plan: what its workers agree on.
        slices: oldest first, without expired ones.
        waiting: requests in the queue.
        taken: requests that workers have.
        failed: requests on the failed list.
        leases: when the lease of each worker ends, in seconds since 1970 by the server's clock.
        secret: the key of its probes.
    """

    key: str
    epoch: str
    plan: Plan
    slices: Sequence[SliceRow]
    waiting: int
    taken: int
    failed: int
    leases: dict[str, float]
    secret: bytes = field(repr=False)

    def at(self, now: float) -> State:
        """Return the same without the slices that have expired by now.

        If all have, an empty one stands in for the next, which has no key yet.
        """
        newest = self.slices[-1]
        ended = now - self.plan.window * 9 / 8
        live = [one for one in self.slices if one.since > ended]
        empty = newest._replace(number=newest.number + 1, since=now, items=0, again=0)
        return replace(self, slices=live or [empty])


class Reader:
    """Reads a filter and its requests.

    :param worker: runs the scripts; it takes no lease.
    :param key: of the filter.
    """

    def __init__(self, worker: Worker, key: str) -> None:
        self._worker = worker
        self._key = key

    def shards(self) -> list[State]:
        """Return the state of each shard; an empty list if nothing is there.

        :raises BackendError: if the server cannot be used.
        :raises StateError: if something else is under the key.
        """
        first = self._state(self._key)
        if first is None:
            return []
        others = (self._state(shard_key(self._key, n)) for n in range(1, first.plan.shards))
        return [first, *(state for state in others if state is not None)]

    def there(self) -> list[State]:
        """Return the state of each shard.

        :raises BackendError: as :meth:`shards`.
        :raises StateError: likewise, and if nothing is there.
        """
        if states := self.shards():
            return states
        raise StateError(
            f"Redis at {self._worker.where}: found no filter under {self._key!r}. A crawl creates"
            f" it when it starts, under BLOOM_REDIS_KEY: by default BOT_NAME:SPIDER:bloom, such as"
            f" books:books:bloom."
        )

    def info(self) -> FilterInfo:
        """Return the state of the filter.

        :raises BackendError: as :meth:`shards`.
        :raises StateError: as :meth:`shards`, and if nothing is there.
        """
        return describe(self.there())

    def contains_many(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each fingerprint whether it was added, without acting as a worker.

        :raises BackendError: as :meth:`shards`.
        :raises StateError: as :meth:`shards`, and if nothing is there.
        """
        states = self.there()
        seen: dict[bytes, bool] = {}
        for state in states:
            mine = [
                one for one in fingerprints if place(one, state.plan.shards) == state.plan.shard
            ]
            plan = state.plan
            try:
                told = ask(
                    *(self._worker, state.key, state.epoch),
                    *(plan.hash(state.secret), mine),
                )
            except Surprise:
                raise StateError(
                    f"Redis at {self._worker.where}: the filter under {state.key!r} has just"
                    f" started over. Try again."
                ) from None
            seen.update(zip(mine, told, strict=True))
        return [seen.get(one, False) for one in fingerprints]

    def requests(self, which: str) -> Iterator[Taken]:
        """Yield the waiting requests in order, or those on the failed list.

        :param which: ``queue`` or ``failed``.
        :raises BackendError: as :meth:`shards`.
        :raises StateError: likewise.
        """
        client = self._worker.client
        for state in self.shards():
            name = beginning(state.key) + which
            with self._worker.explained():
                if which == "failed":
                    yield from (Taken.read(value) for value in client.hvals(name))
                    continue
                start = 0
                while some := client.zrange(name, start, start + _AT_ONCE - 1):
                    yield from (Taken.read(b" " + member) for member in some)
                    start += len(some)

    def _state(self, key: str) -> State | None:
        with self._worker.explained():
            kind = self._worker.client.type(key)
            fields = self._fields(key) if kind == b"hash" else {}
        if kind == b"none" or (fields.get(b"program") == PROGRAM and b"epoch" not in fields):
            return None
        found = f"Redis at {self._worker.where}: found"
        if fields.get(b"program") != PROGRAM:
            what = kind.decode()
            raise StateError(f"{found} a {what} under {key!r} that is no filter of scrapy-bloom.")
        if fields.get(b"format") != FORMAT:
            raise StateError(
                f"{found} format {fields.get(b'format', b'').decode()!r} under {key!r}, expected"
                f" {FORMAT.decode()!r}: use the version of scrapy-bloom that wrote it."
            )
        try:
            state = _read(key, fields)
        except (KeyError, ValueError, IndexError, StateError) as error:
            raise StateError(f"{found} a damaged header under {key!r} ({error!r}).") from None
        if not state.plan.window:
            return state
        word, *told = self._worker.run("ask", key, state.epoch, b"")
        return state.at(float(told[1])) if word == b"ok" else state

    def _fields(self, key: str) -> dict[bytes, bytes]:
        """Return a header, using only commands that every worker may use."""
        client = self._worker.client
        names = client.hkeys(key)
        values = client.hmget(key, names) if names else ()
        pairs = zip(names, values, strict=True)
        return {name: value for name, value in pairs if value is not None}


def _read(key: str, fields: dict[bytes, bytes]) -> State:
    """Return the state of a shard from the fields of its header."""
    plan, secret = Plan.read(fields[b"plan"])
    words = {name[2:]: value.split() for name, value in fields.items() if name[:2] == b"w:"}
    leases = {
        name.decode(): float(value[1]) for name, value in words.items() if value[1] != b"dead"
    }
    waiting, taken, failed = (int(fields[name]) for name in (b"waiting", b"taken", b"failed"))
    slices, epoch = read_slices(fields[b"slices"]), fields[b"epoch"].decode()
    if not slices:
        raise ValueError("no slices")
    return State(key, epoch, plan, slices, waiting, taken, failed, leases, secret)


def describe(states: Sequence[State]) -> FilterInfo:
    """Return the state of a filter, computed from the items in its slices."""
    plan = states[0].plan
    counts = [[state.plan.count(one) for one in state.slices] for state in states]
    return filter_info(
        [[count for count, _ in shard] for shard in counts],
        capacity=sum(state.plan.capacity for state in states),
        error_rate=plan.error_rate,
        memory=sum(memory for shard in counts for _, memory in shard),
        window=plan.window or None,
        dates=[one.since for one in states[0].slices],  # those of the others differ by moments
    )
