"""Reads what is in Redis under a key, and changes nothing."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from scrapy_bloom.errors import StateError
from scrapy_bloom.filter.info import FilterInfo
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.key import FORMAT, PROGRAM, Surprise, ask
from scrapy_bloom.redis.member import SECOND, Taken, with_length
from scrapy_bloom.redis.plan import Plan, SliceRow, read_slices
from scrapy_bloom.redis.worker import Worker

_AT_ONCE: Final = 100


@dataclass(frozen=True)
class State:
    """What is under a key at one moment.

    Attributes:
        epoch: identifies the filter that is there.
        plan: what its workers agree on.
        slices: oldest first, without expired ones.
        waiting: requests that no worker has.
        taken: requests that workers have.
        failed: requests on the failed list.
        leases: when the lease of each worker ends, in seconds since 1970 by the server's clock.
        secret: the key of its probes.
    """

    epoch: str
    plan: Plan
    slices: Sequence[SliceRow]
    waiting: int
    taken: int
    failed: int
    leases: dict[str, float]
    secret: bytes = field(repr=False)

    @property
    def items(self) -> int:
        """Marks that count."""
        return sum(row.items - row.again for row in self.slices)

    def info(self) -> FilterInfo:
        """Return the state of the filter, computed from the items in its slices."""
        return self.plan.info(self.slices)

    def at(self, now: float) -> State:
        """Return the same without the slices that have expired by now.

        If all have, an empty one stands in for the next, which has no key yet.
        """
        newest = self.slices[-1]
        ended = now - self.plan.window * 9 / 8
        live = [row for row in self.slices if row.since > ended]
        empty = newest._replace(number=newest.number + 1, since=now, items=0, again=0)
        return replace(self, slices=live or [empty])


class Host(NamedTuple):
    """A download slot that has requests.

    Attributes:
        slot: its name.
        waiting: how many requests it has.
        due: seconds until it is served, 0 if that may be now.
    """

    slot: bytes
    waiting: int
    due: float


class Delays(NamedTuple):
    """What must not be sent yet.

    Attributes:
        later: how many requests wait for a time.
        next_due: when the first of them may be sent, in seconds since 1970; None if there are none.
        holds: download slots that are left alone, each until when; likewise.
    """

    later: int
    next_due: float | None
    holds: list[tuple[bytes, float]]


class Reader:
    """Reads a filter and its requests.

    :param worker: runs the scripts; it takes no lease.
    :param key: of the filter.
    """

    def __init__(self, worker: Worker, key: str) -> None:
        self._worker = worker
        self._key = key

    def state(self) -> State | None:
        """Return the state of the filter; None if nothing is there.

        :raises BackendError: if the server cannot be used.
        :raises StateError: if something else is under the key.
        """
        with self._worker.explained():
            kind = self._worker.client.type(self._key)
            fields = self._fields() if kind == b"hash" else {}
        if kind == b"none" or (fields.get(b"program") == PROGRAM and b"epoch" not in fields):
            return None
        prefix = f"Redis at {self._worker.address}: found"
        if fields.get(b"program") != PROGRAM:
            raise StateError(
                f"{prefix} a {kind.decode()} under {self._key!r} that is no filter of scrapy-bloom."
            )
        if fields.get(b"format") != FORMAT:
            raise StateError(
                f"{prefix} format {fields.get(b'format', b'').decode()!r} under {self._key!r},"
                f" expected {FORMAT.decode()!r}: use the version of scrapy-bloom that wrote it."
            )
        try:
            state = _read(fields)
        except (KeyError, ValueError, IndexError, StateError) as error:
            raise StateError(
                f"{prefix} a damaged header under {self._key!r} ({error!r})."
            ) from None
        if not state.plan.window:
            return state
        word, *answer = self._worker.run("ask", self._key, state.epoch, b"")
        return state.at(float(answer[1])) if word == b"ok" else state

    def existing(self) -> State:
        """Return the state of the filter.

        :raises BackendError: as :meth:`state`.
        :raises StateError: likewise, and if nothing is there.
        """
        if (state := self.state()) is not None:
            return state
        raise StateError(
            f"Redis at {self._worker.address}: found no filter under {self._key!r}. A crawl creates"
            f" it when it starts, under BLOOM_REDIS_KEY: by default BOT_NAME:SPIDER:bloom, such as"
            f" books:books:bloom."
        )

    def info(self) -> FilterInfo:
        """Return the state of the filter.

        :raises BloomError: as :meth:`existing`.
        """
        return self.existing().info()

    def contains_many(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each fingerprint whether it was added, without acting as a worker.

        :raises BloomError: as :meth:`existing`.
        """
        state = self.existing()
        probe = state.plan.hash(state.secret)
        try:
            return ask(self._worker, self._key, state.epoch, probe, fingerprints)
        except Surprise:
            raise StateError(
                f"Redis at {self._worker.address}: the filter under {self._key!r} has just started"
                f" over. Try again."
            ) from None

    def failed(self) -> Iterator[Taken]:
        """Yield the requests on the failed list.

        :raises BackendError: if the server cannot be used.
        """
        with self._worker.explained():
            values = self._worker.client.hvals(beginning(self._key) + "failed")
            yield from (Taken.read(value, 0) for value in values)

    def requests(self) -> Iterator[tuple[Taken, float]]:
        """Yield the waiting requests, by download slot and in order, each with when it may be sent.

        That is in seconds since 1970, or 0 if it need not wait for a time.

        :raises BackendError: if the server cannot be used.
        """
        client, base = self._worker.client, beginning(self._key)
        with self._worker.explained():
            skew = self._skew()
            for which in "queue", "later":
                start = 0
                while rows := client.zrange(
                    base + which, start, start + _AT_ONCE - 1, withscores=True
                ):
                    for member, due in rows:
                        yield Taken.read_member(member), due and due / SECOND - skew
                    start += len(rows)

    def delays(self, count: int) -> Delays:
        """Return what must not be sent yet, with the slots whose time comes next.

        :raises BackendError: if the server cannot be used.
        """
        client, base = self._worker.client, beginning(self._key)
        with self._worker.explained():
            seconds, fraction = client.time()
            skew = self._skew()
            since = int((seconds + skew) * SECOND) + fraction, "inf"
            first = client.zrangebyscore(base + "later", *since, 0, 1, withscores=True)
            rows = client.zrangebyscore(base + "holds", *since, 0, count, withscores=True)
            return Delays(
                client.zcount(base + "later", *since),
                first[0][1] / SECOND - skew if first else None,
                [(slot, until / SECOND - skew) for slot, until in rows],
            )

    def hosts(self, count: int) -> tuple[int, list[Host]]:
        """Return how many download slots have requests, and those that are served next.

        :raises BackendError: if the server cannot be used.
        """
        client, start = self._worker.client, beginning(self._key)
        with self._worker.explained():
            seconds, fraction = client.time()
            clock = seconds * SECOND + fraction + self._skew() * SECOND
            turns = client.zrange(start + "turns", 0, count - 1, withscores=True)
            return client.zcard(start + "turns"), [
                Host(
                    slot,
                    client.zlexcount(start + "queue", *_range(slot)),
                    max(0.0, turn - clock) / SECOND,
                )
                for slot, turn in turns
            ]

    def upcoming(self, count: int) -> Iterator[Taken]:
        """Yield the requests that are sent next, in order.

        :raises BackendError: if the server cannot be used.
        """
        client, start = self._worker.client, beginning(self._key)
        with self._worker.explained():
            default = float(client.hget(self._key, "delay") or 0)
            turns = client.zrange(start + "turns", 0, count - 1, withscores=True)
            heap = [(turn, number, slot, 0) for number, (slot, turn) in enumerate(turns)]
            while heap and count:
                turn, number, slot, read = heapq.heappop(heap)
                members = client.zrangebylex(start + "queue", *_range(slot), read, 1)
                if not members:
                    continue
                yield Taken.read_member(members[0])
                count -= 1
                pace = client.hget(start + "delays", slot)
                delay = float(pace.split()[0]) if pace else default if slot else 0.0
                # Slots without a delay are served in turn.
                heapq.heappush(heap, (turn + delay * SECOND, number + len(turns), slot, read + 1))

    def _skew(self) -> float:
        """Return what the times of requests and slots are ahead of the server's clock."""
        words = (self._worker.client.hget(self._key, "well") or b"").split()
        return float(words[3]) if len(words) > 3 else 0.0  # noqa: PLR2004 - the fourth of them

    def _fields(self) -> dict[bytes, bytes]:
        """Return the header, using only commands that every worker may use."""
        client = self._worker.client
        names = client.hkeys(self._key)
        values = client.hmget(self._key, names) if names else ()
        pairs = zip(names, values, strict=True)
        return {name: value for name, value in pairs if value is not None}


def _range(slot: bytes) -> tuple[bytes, bytes]:
    """Return between which members of the queue the requests of a slot are."""
    return b"[" + with_length(slot), b"(" + with_length(slot) + b"\xff"


def _read(fields: dict[bytes, bytes]) -> State:
    """Return the state from the fields of the header."""
    plan, secret = Plan.read(fields[b"plan"])
    words = {name[2:]: value.split() for name, value in fields.items() if name[:2] == b"w:"}
    leases = {
        name.decode(): float(value[1]) for name, value in words.items() if value[1] != b"dead"
    }
    waiting, taken, failed = (int(fields[name]) for name in (b"waiting", b"taken", b"failed"))
    slices, epoch = read_slices(fields[b"slices"]), fields[b"epoch"].decode()
    if not slices:
        raise ValueError("no slices")
    return State(epoch, plan, slices, waiting, taken, failed, leases, secret)
