"""A Bloom filter in Redis that any number of workers share. Requests wait elsewhere."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from scrapy_bloom.errors import BackendError, BloomError, FilterLostError
from scrapy_bloom.filter.info import FilterInfo
from scrapy_bloom.options import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    ON_BACKEND_ERROR,
    REDIS_KEY,
    REDIS_LAYOUT,
    REDIS_SHARDS,
    REDIS_TIMEOUT,
    OnBackendError,
    Words,
    in_arguments,
    read_capacity,
    read_error_rate,
    read_window,
)
from scrapy_bloom.redis import worker as pace
from scrapy_bloom.redis.client import Target
from scrapy_bloom.redis.plan import BATCH, Plan, place, shard_capacity, shard_key
from scrapy_bloom.redis.reader import Reader
from scrapy_bloom.redis.shard import KNOWN, Call, Entry, Kind, Shard, Surprise
from scrapy_bloom.redis.worker import Worker

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE: float = 30.0
"""For so many seconds in all, one outage may hold up the checks of a worker that waits."""

_STILL: Final = 3  # beats that a worker has missed which seems to be dead
_LOOK: Final = 0.1


def plans(  # noqa: PLR0913 - what users may choose
    *,
    capacity: object = DEFAULT_CAPACITY,
    error_rate: object = DEFAULT_ERROR_RATE,
    digests: bool = True,
    fingerprinter: str = "",
    canonical: str = "{}",
    window: object = None,
    layout: object = "bitmap",
    shards: object = 1,
    project: str = "",
    spider: str = "",
    order: str = "",
    words: Words = in_arguments,
) -> list[Plan]:
    """Return the plan of each shard.

    :param capacity: items in all of them, as users write it, like `error_rate`, `window`, `layout`
        and `shards`.
    :param digests: as :class:`Plan` has it, like what is not named here.
    :param words: names an option in errors.
    :raises SettingError: if a value is outside its range.
    """
    items = read_capacity("capacity", capacity)
    count = REDIS_SHARDS.read(words(REDIS_SHARDS), shards)
    return [
        Plan(
            shard_capacity(items, count),
            read_error_rate("error_rate", error_rate),
            digests,
            fingerprinter,
            canonical,
            REDIS_LAYOUT.read(words(REDIS_LAYOUT), layout),
            read_window("window", window) or 0.0,
            number,
            count,
            project,
            spider,
            order,
        )
        for number in range(count)
    ]


class RedisFilter:
    """A Bloom filter that any number of workers share through Redis 6 or later, or Valkey.

    A fingerprint is granted, called new, to exactly one of them; where that cannot be known it is
    called new, never seen.

    >>> seen = RedisFilter.from_url("redis://localhost", key="crawl:bloom")  # doctest: +SKIP
    >>> seen.add(b"one"), seen.add(b"one")  # doctest: +SKIP
    (False, True)

    If the server loses the filter, or goes back to an older state of it, the worker forgets what it
    knows and goes on with what the server has. Not for several threads at once; a thread of its own
    renews the lease.

    :param target: the server.
    :param key: of the filter: ``crawl:bloom``.
    :param made_for: the plan of each shard, see :func:`plans`.
    :param on_error: what to do while Redis cannot be used. ``allow``: a page that this worker does
        not know is new, at once. ``wait``: the same, after `timeout`, and at once when an outage
        has taken 30 s. ``close``: raise.
    :param timeout: most seconds that one check may take.
    :param known: how many fingerprints the worker remembers itself.
    :param empty: whether to empty it when it is opened, unless other workers use it.
    :raises BackendError: if the server cannot be used, under the policy ``close`` or if that will
        not pass. Else it is opened when it can be.
    :raises SettingError: if a value is outside its range.
    :raises StateError: if something else is under the key, or a filter made in another way.

    Attributes:
        worker: runs the scripts.
        emptied: whether it was emptied when it was opened.
    """

    def __init__(
        self,
        target: Target,
        key: str,
        made_for: Sequence[Plan],
        *,
        on_error: OnBackendError = OnBackendError.ALLOW,
        timeout: float = REDIS_TIMEOUT.default,
        known: int = KNOWN,
        empty: bool = False,
    ) -> None:
        self._key, self._plans = key, made_for
        self._words = target.words
        self._policy, self._timeout, self._known = on_error, timeout, known
        self._pid, self._closed = os.getpid(), False
        self.worker = Worker(target, timeout)
        self._shards: list[Shard] = []
        self._owed: set[bytes] = set()  # granted by the server, while the caller got an error
        self._refusal: BloomError | None = None
        self._unknown = self._surprises = 0
        self._patience = PATIENCE
        self._empty, self.emptied = empty, False
        try:
            self._open()
        except BackendError as error:
            if on_error is OnBackendError.CLOSE or not error.temporary:
                self.worker.close()
                raise
            self.worker.live([self._open_later])
        except BaseException:
            self.worker.close()
            raise

    @classmethod
    def from_url(  # noqa: PLR0913 - all that users may choose, by keyword
        cls,
        url: str,
        *,
        key: str,
        capacity: int = DEFAULT_CAPACITY,
        error_rate: float = DEFAULT_ERROR_RATE,
        window: float | None = None,
        layout: Literal["bitmap", "sets"] = "bitmap",
        shards: int = 1,
        on_error: OnBackendError | Literal["auto", "allow", "wait", "close"] = "auto",
        timeout: float = REDIS_TIMEOUT.default,
    ) -> Self:
        """Open the filter under a key of the server that the URL names, or make it.

        :param url: ``redis://[user:password@]host[:port][/database]``, ``rediss://`` for TLS,
            ``sentinel://host,host/service``, ``unix:///path``. A node of a cluster stands for the
            cluster.
        :param key: as for the class, like `on_error` and `timeout`.
        :param capacity: items that are expected, 1 to 10,000,000,000. If there are more, it grows.
            A filter that is there already keeps its own.
        :param error_rate: bound for the share of new items that are called seen, in total, from
            1e-15 to below 1.
        :param window: seconds that an item is seen, at least, and at most an eighth longer; None
            for ever.
        :param layout: ``bitmap``, or ``sets``, which is faster.
        :param shards: how many nodes of a cluster it is spread over.
        :raises BloomError: as the class does.
        """
        made_for = plans(
            capacity=capacity, error_rate=error_rate, window=window, layout=layout, shards=shards
        )
        policy = ON_BACKEND_ERROR.read("on_error", on_error)
        return cls(
            Target(url),
            REDIS_KEY.read("key", key),
            made_for,
            on_error=OnBackendError.ALLOW if policy is OnBackendError.AUTO else policy,
            timeout=REDIS_TIMEOUT.read("timeout", timeout),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Opening

    def _open(self) -> None:
        self.worker.connect()
        shards = [
            Shard(
                self.worker,
                shard_key(self._key, plan.shard),
                plan,
                self._words,
                known=self._known // len(self._plans),
            )
            for plan in self._plans
        ]
        if self._empty and not all(shard.made for shard in shards):
            self.emptied = self._clear(shards)
        self._shards = shards
        self.worker.live([shard.beat for shard in shards])

    def _open_later(self) -> None:
        try:
            self._open()
        except BackendError as error:
            if error.temporary:
                raise
            self._refusal = error
        except BloomError as error:
            self._refusal = error

    @property
    def usable(self) -> bool:
        """Whether the next check asks Redis: False from a fault until the server answers."""
        return bool(self._shards) and self.worker.usable.is_set()

    @property
    def shards(self) -> Sequence[Shard]:
        """Its shards; none before it is open."""
        return self._shards

    # What callers ask

    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before.

        :raises BackendError: as :meth:`add_many`, like what follows.
        :raises FilterLostError: likewise.
        """
        return self.add_many((fingerprint,))[0]

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; return for each, in order, whether it was there before.

        One round trip for each shard and each 500 fingerprints that the worker does not know.

        :raises BackendError: under the policy ``close``, if Redis cannot be used. None of these
            fingerprints is called seen for it when it is added again.
        :raises FilterLostError: if a user has deleted the filter.
        """
        asked = list(fingerprints)
        self._check()
        unknown = [one for one in dict.fromkeys(asked) if not self._knows(one)]
        if not unknown:
            return [True] * len(asked)
        verdicts = self._mark([Entry("m", one) for one in unknown])
        seen = dict(zip(unknown, verdicts, strict=True))
        for one in self._owed.intersection(unknown):
            seen[one] = False
            self._owed.discard(one)
        # From here on the verdicts reach their caller, and not before.
        for number, some in self._spread(unknown, lambda one: one).items():
            if self._shards:
                self._shards[number].known.update(some)
        # Of repeats the first one takes the verdict, the others are seen.
        return [seen.pop(one, True) for one in asked]

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether this method let a fingerprint through less than `max_age` seconds ago.

        Among all workers, by the clock of the server. If not, add it, and remember the time. What
        came by other methods is let through, since nobody knows when that was.

        :raises BackendError: as :meth:`add_many`, like what follows.
        :raises FilterLostError: likewise.
        """
        return self._mark([Entry("m", fingerprint, max_age=max_age)])[0]

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether the fingerprint was added. Changes nothing."""
        return self.contains_many((fingerprint,))[0]

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added. Changes nothing.

        While Redis cannot be used the answer is False for what the worker does not know itself.

        :raises BackendError: under the policy ``close``, if Redis cannot be used.
        :raises FilterLostError: if a user has deleted the filter.
        """
        asked = list(fingerprints)

        def ask(shard: Shard, some: list[bytes]) -> list[bool]:
            while True:
                try:
                    return shard.ask(some)
                except Surprise as surprise:  # noqa: PERF203 - rare
                    self._begin_again(shard, surprise)

        unknown = [one for one in asked if not self._knows(one)]
        there = self._each(unknown, lambda one: one, ask)
        found = iter(there if there is not None else [False] * len(unknown))
        return [self._knows(one) or next(found) for one in asked]

    def forget(self, fingerprint: bytes) -> bool:
        """Make a fingerprint new again; return whether it was there.

        It is granted once more then, to one worker. Other workers learn of it with their next call;
        until then they may call it seen.

        :raises BackendError: if Redis cannot be used, whatever the policy.
        :raises FilterLostError: if a user has deleted the filter.
        """
        return self.forget_many((fingerprint,))[0]

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make fingerprints new again; return for each, in order, whether it was there.

        :raises BloomError: as :meth:`forget` does.
        """
        asked = list(fingerprints)
        different = [*dict.fromkeys(asked)]
        entries = [Entry("x", one) for one in different]
        there = self._each(entries, _fingerprint, self._batches, policy=OnBackendError.CLOSE)
        for shard in self._shards:
            shard.known.clear()
        self._owed.difference_update(different)
        found = dict(zip(different, there or (), strict=False))
        return [found.pop(one, False) for one in asked]

    def info(self) -> FilterInfo:
        """Return the state of the filter now, from a sample of it.

        :raises BackendError: if Redis cannot be used.
        """
        return Reader(self.worker, self._key).info()

    def numbers(self) -> dict[str, int]:
        """Return what went over the wire, by the names of the stats."""
        counters = self.worker.counters
        return {
            "round_trips": counters.round_trips,
            "unknown": self._unknown,
            "outages": counters.outages,
            "losses": self._surprises,
        }

    @property
    def items(self) -> int:
        """How many fingerprints it had when its slices were last heard of."""
        return sum(one.items - one.again for shard in self._shards for one in shard.slices)

    def has_others(self) -> bool:
        """Return whether another worker has a lease.

        :raises BackendError: if Redis cannot be used.
        """
        own = {shard.name for shard in self._shards}
        states = Reader(self.worker, self._key).shards()
        return any(name not in own for state in states for name in state.leases)

    def clear(self) -> bool:
        """Forget everything; return False if another worker uses it. Then nothing was done.

        A worker that gives no sign of life for three seconds, as after a kill, uses it no more.

        :raises BackendError: if Redis cannot be used.
        """
        self._forget_all()
        return self._clear(self._shards)

    def delete(self) -> bool:
        """Delete the filter, for a worker that has finished; return False as :meth:`clear`.

        :raises BackendError: if Redis cannot be used.
        """
        self._forget_all()
        return all(_delete(shard) for shard in self._shards)

    def close(self) -> None:
        """End the lease. A second call does nothing."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        try:
            for shard in self._shards:
                shard.leave()
        except BackendError as error:
            logger.info("The lease was not given up, and ends by itself: %s", error)
        self.worker.close()

    # Within

    def _check(self) -> None:
        """Make a forked child a worker of its own, and raise why the filter cannot be used."""
        if self._refusal is not None:
            raise self._refusal
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            for shard in self._shards:
                shard.rename()
            self.worker.live([shard.beat for shard in self._shards])

    def _clear(self, shards: Sequence[Shard]) -> bool:
        cleared = True
        for shard in shards:
            if _delete(shard):
                shard.epoch = ""  # what it had was deleted by itself
                shard.open()
            else:
                cleared = False
        return cleared

    def _forget_all(self) -> None:
        self._check()
        self._owed.clear()
        for shard in self._shards:
            shard.known.clear()

    def _knows(self, fingerprint: bytes) -> bool:
        shards = self._shards
        return bool(shards) and shards[place(fingerprint, len(shards))].knows(fingerprint)

    def _mark(self, entries: list[Entry]) -> list[bool]:
        seen = self._each(entries, _fingerprint, self._batches)
        if seen is None:
            self._unknown += len(entries)
            return [False] * len(entries)
        return seen

    def _spread(self, items: Iterable[T], key: Callable[[T], bytes]) -> dict[int, list[T]]:
        parts: dict[int, list[T]] = {}
        for item in items:
            parts.setdefault(place(key(item), len(self._plans)), []).append(item)
        return parts

    def _each(
        self,
        items: list[T],
        key: Callable[[T], bytes],
        ask: Callable[[Shard, list[T]], list[bool]],
        policy: OnBackendError | None = None,
    ) -> list[bool] | None:
        """Ask each shard about its items; return the answers in their order.

        None if the server cannot be used, and the policy is to go on without it.
        """
        self._check()
        policy = policy or self._policy
        end = time.monotonic() + self._timeout
        while True:
            try:
                if not self._shards:
                    raise self.worker.error
                answers: dict[bytes, bool] = {}
                for number, part in self._spread(items, key).items():
                    verdicts = ask(self._shards[number], part)
                    answers.update(zip(map(key, part), verdicts, strict=True))
            except BackendError:  # noqa: PERF203 - after a call over the network
                began = time.monotonic()
                left = min(end - began, self._patience)
                if policy is OnBackendError.CLOSE:
                    raise
                if policy is OnBackendError.ALLOW or left <= 0:
                    return None
                self.worker.usable.wait(left)
                self._patience -= time.monotonic() - began
            else:
                self._patience = PATIENCE
                return [answers[key(item)] for item in items]

    def _batches(self, shard: Shard, entries: list[Entry]) -> list[bool]:
        """Make calls for entries; return what was there."""
        if shard.unanswered is not None:
            call = shard.unanswered
            for entry, was_there in zip(call.entries, self._answer(shard, call), strict=True):
                fingerprint = _fingerprint(entry)
                if entry.letter == "m" and not was_there and fingerprint not in shard.known:
                    self._owed.add(fingerprint)
        seen: list[bool] = []
        for start in range(0, len(entries), BATCH):
            seen += self._answer(shard, Call(entries[start : start + BATCH]))
        return seen

    def _answer(self, shard: Shard, call: Call) -> list[bool]:
        """Make a call until it is answered; return what was there.

        After a surprise nobody knows whether an earlier try of this call has marked its pages.
        Their requests are here, so they count as new.
        """
        while True:
            try:
                seen = shard.call(call).seen
            except Surprise as surprise:  # noqa: PERF203 - rare
                call.doubted = True
                self._begin_again(shard, surprise)
            else:
                return [False] * len(seen) if call.doubted else seen

    def _begin_again(self, shard: Shard, surprise: Surprise) -> None:
        """Forget what this worker knows of a shard, and go on with what the server has.

        :raises FilterLostError: if a user has deleted it.
        """
        where = f"Redis at {self.worker.where}, key {shard.key!r}"
        try:
            if surprise.kind is Kind.DELETED:
                raise surprise
            shard.open()
        except Surprise as deleted:
            raise FilterLostError(
                f"{where}: the filter was deleted while this worker used it."
            ) from deleted
        self._surprises += 1
        if surprise.kind is not Kind.DEAD:
            logger.warning(
                "%s: %s. This worker goes on with what the server has: pages may be fetched again.",
                where,
                surprise,
            )


def _delete(shard: Shard) -> bool:
    """Delete a shard, unless a worker uses it that gives signs of life."""
    dead: set[str] = set()
    while leases := shard.delete(dead):
        end = time.monotonic() + _STILL * pace.BEAT
        while time.monotonic() < end:
            time.sleep(_LOOK)
            left = shard.delete(dead)
            if not left:
                return True
            if any(seconds > leases.get(name, 0) for name, seconds in left.items()):
                return False  # somebody beats, or has just come
            leases = left
        dead.update(leases)
    return True


def _fingerprint(entry: Entry) -> bytes:
    assert entry.fingerprint is not None  # noqa: S101 - only pages are marked here
    return entry.fingerprint
