"""The filter in Redis as the rest of the package knows it: it only spreads work over shards."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from scrapy_bloom.core.info import FilterInfo
from scrapy_bloom.errors import BackendError, BloomError
from scrapy_bloom.options import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    ON_BACKEND_ERROR,
    REDIS_LAYOUT,
    REDIS_SHARDS,
    REDIS_TIMEOUT,
    OnBackendError,
    read_capacity,
    read_error_rate,
    read_window,
)
from scrapy_bloom.redis import pace
from scrapy_bloom.redis.beside import check_empty, check_whole, count_unmarked
from scrapy_bloom.redis.breaker import CircuitBreaker
from scrapy_bloom.redis.connection import (
    Client,
    Target,
    is_cluster,
    warn_of_eviction,
)
from scrapy_bloom.redis.counters import Counters
from scrapy_bloom.redis.deadline import Within
from scrapy_bloom.redis.header import Plan
from scrapy_bloom.redis.heartbeat import Heartbeat
from scrapy_bloom.redis.inspection import describe
from scrapy_bloom.redis.layout import layout_of
from scrapy_bloom.redis.membership import new_worker
from scrapy_bloom.redis.options import CACHE, RedisOptions
from scrapy_bloom.redis.place import Place
from scrapy_bloom.redis.queue.reader import QueueReader
from scrapy_bloom.redis.shard import Shard
from scrapy_bloom.redis.sharding import ask_each, picker, shard_capacity, shard_key
from scrapy_bloom.redis.watch import wait_deserted

if TYPE_CHECKING:
    from typing_extensions import Self


logger = logging.getLogger(__name__)


class RedisFilter:
    """A Bloom filter that any number of workers share through Redis 6 or later, or Valkey.

    A fingerprint is granted, called new, to exactly one of them; where that cannot be known it is
    called new, never seen.

    >>> seen = RedisFilter.from_url("redis://localhost", key="crawl:bloom")  # doctest: +SKIP
    >>> seen.add(b"one"), seen.add(b"one")  # doctest: +SKIP
    (False, True)

    Not for several threads at once; a thread of its own keeps the worker registered.

    :param target: the server.
    :param capacity: items in the first slice, 1 to 10,000,000,000; each further slice doubles the
        total. A filter that is there already keeps its own.
    :param error_rate: bound for the share of new items that are called seen, in total, from 1e-15
        to below 1.
    :param digests: as for :class:`LocalFilter`.
    :param fingerprinter: what makes the fingerprints; all workers of a filter need the same.
    :param canonical: by which rules URLs were spelled, as JSON; kept for whoever asks.
    :param window: seconds that an item is seen, from 1 to 3,153,600,000, and at most an eighth
        longer; None for ever. All workers of a filter need the same. In a filter that no worker
        uses and that has another one, or none, what is there counts as added now.
    :param options: see :class:`RedisOptions`; None for its defaults.
    :raises SettingError: if a value is outside its range.
    :raises BackendError: if the server cannot be used. The policy ``wait`` waits for it first.
    :raises StateError: if something else is under the key, or a filter that this worker cannot use.
        It is left untouched.

    Attributes:
        counters: what went over the wire so far.
        restored: how many fingerprints it held when this worker came; with a window at least, if
            some were forgotten.
        marked: whether it held any then.
        was_empty: whether it held none at all then, not even such as a window has ended.
        canonical: by which rules the URLs were spelled of those who made the filter.
        unmarked: how many requests waited beside it, though no filter was there; 0 if the options
            do not say that the crawl uses them.
    """

    def __init__(  # noqa: PLR0913 - one for each thing that users may choose
        self,
        target: Target,
        *,
        capacity: int = DEFAULT_CAPACITY,
        error_rate: float = DEFAULT_ERROR_RATE,
        digests: bool = True,
        fingerprinter: str = "",
        canonical: str = "{}",
        window: float | None = None,
        options: RedisOptions | None = None,
    ) -> None:
        options = options or RedisOptions()
        capacity = read_capacity("capacity", capacity)
        self._error_rate = read_error_rate("error_rate", error_rate)
        seconds = read_window("window", window)
        self._server = target.where()
        self._keep = options.keep
        self._beside = options.beside
        self._stopped = options.stopped
        self._pid = os.getpid()
        self._closed = False
        self._has_queue = False
        self.counters = Counters()
        plans = [
            Plan(
                shard_capacity(capacity, options.shards),
                self._error_rate,
                digests,
                fingerprinter,
                number,
                options.shards,
                canonical,
                options.layout,
                seconds or 0.0,
            )
            for number in range(options.shards)
        ]
        self._alarm = threading.Event()
        self._client, self._shards, self.unmarked = _patiently(
            options, lambda: _open_shards(target, plans, options, self.counters, self._alarm)
        )
        self._shard = picker(self._shards)
        first = self._shards[0].header
        self.canonical = first.plan.canonical if first else canonical
        self.restored = sum(shard.restored for shard in self._shards)
        self.marked = any(shard.marked for shard in self._shards)
        self.was_empty = not any(shard.header.marked for shard in self._shards if shard.header)
        with Within(options.timeout):
            warn_of_eviction(self._client, self._server)
        self._heartbeat = self._start_heartbeat()

    @classmethod
    def from_url(  # noqa: PLR0913 - all that the class and its options take, by keyword
        cls,
        url: str,
        *,
        key: str,
        capacity: int = DEFAULT_CAPACITY,
        error_rate: float = DEFAULT_ERROR_RATE,
        digests: bool = True,
        fingerprinter: str = "",
        canonical: str = "{}",
        window: float | None = None,
        shards: int = REDIS_SHARDS.default,
        layout: str = REDIS_LAYOUT.default,
        cache: int = CACHE,
        on_error: OnBackendError
        | Literal["auto", "allow", "wait", "close"] = ON_BACKEND_ERROR.default,
        timeout: float = REDIS_TIMEOUT.default,
        wait: float = pace.WAIT,
        keep: bool = True,
    ) -> Self:
        """Open the filter under a key of the server that the URL names, or make it.

        :param url: ``redis://[user:password@]host[:port][/database]``, ``rediss://`` for TLS,
            ``unix:///path``. A node of a cluster stands for the cluster.
        :param key: as in :class:`RedisOptions`, like `shards` and what follows it.
        :param capacity: as for the class, like `error_rate` and what follows it.
        :raises BloomError: as the class does.
        """
        return cls(
            Target(url),
            capacity=capacity,
            error_rate=error_rate,
            digests=digests,
            fingerprinter=fingerprinter,
            canonical=canonical,
            window=window,
            options=RedisOptions(
                key=key,
                shards=shards,
                layout=layout,
                cache=cache,
                on_error=ON_BACKEND_ERROR.read("on_error", on_error),
                timeout=timeout,
                wait=wait,
                keep=keep,
            ),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def secret(self) -> bytes:
        """The key of the probes of the first shard; every shard has its own."""
        header = self._shards[0].header
        return header.secret if header else b""

    @property
    def shards(self) -> Sequence[Shard]:
        """Its shards, in the order of their numbers."""
        return self._shards

    @property
    def usable(self) -> bool:
        """Whether the next check may ask Redis: False from a fault until its server answers."""
        return all(shard.breaker.usable for shard in self._shards)

    @property
    def has_others(self) -> bool:
        """Whether this worker found other workers' entries, living or dead, when it came."""
        found = self._shards[0].registration
        return found is not None and bool(found.others)

    def wait_deserted(self) -> bool:
        """Return whether this worker found other workers' entries, and none of them lives now.

        Waits about a second if one does, 10 s if all were killed, and 20 s at most.

        :raises BackendError: if Redis cannot be used.
        """
        self._notice_fork()
        if not self.has_others:
            return False
        return wait_deserted((shard.look for shard in self._shards), self._stopped)

    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before.

        :raises BackendError: as :meth:`add_many`.
        :raises FilterLostError: as :meth:`add_many`.
        """
        if self._shard(fingerprint).knows(fingerprint):
            self.counters.local += 1
            return True
        return self._add_unknown([fingerprint])[0]

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; return for each, in order, whether it was there before.

        One round trip for each shard and each 500 fingerprints that the worker does not know.

        :raises BackendError: under the policy ``close``, if Redis cannot be used. None of the
            fingerprints is granted then, and none is called seen for it when it is added again.
        :raises FilterLostError: under the policy ``close``, if the filter has vanished; likewise.
        """
        known = list(fingerprints)
        unknown = self._unknown(dict.fromkeys(known))
        self.counters.local += len(known) - len(unknown)
        if not unknown:
            return [True] * len(known)
        verdicts = dict(zip(unknown, self._add_unknown(unknown), strict=True))
        # Of repeats the first one takes the verdict, the others are seen.
        return [verdicts.pop(fingerprint, True) for fingerprint in known]

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether this method let a fingerprint through less than `max_age` seconds ago.

        Among all workers, by the clock of the server. If not, add it, and remember the time. What
        came by other methods only is let through, since nobody knows when that was.

        :raises BackendError: as :meth:`add_many`.
        :raises FilterLostError: as :meth:`add_many`.
        """
        self._notice_fork()
        shard = self._shard(fingerprint)
        try:
            return shard.add_aged(fingerprint, max_age)
        except BloomError:
            shard.disown([fingerprint])
            raise

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether the fingerprint was added. Changes nothing."""
        return self.contains_many([fingerprint])[0]

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added. Changes nothing.

        While Redis cannot be used the answer is False for what the worker does not know itself.

        :raises BackendError: under the policy ``close``, if Redis cannot be used.
        """
        known = list(fingerprints)
        answers = [self._shard(fingerprint).knows(fingerprint) for fingerprint in known]
        unknown = [fp for fp, answer in zip(known, answers, strict=True) if not answer]
        if not unknown:
            return answers
        found = iter(self._spread(unknown, Shard.contains))
        return [answer or next(found) for answer in answers]

    def forget(self, fingerprint: bytes) -> bool:
        """Make a fingerprint new again; return whether it was there.

        It is granted once more then, to one worker. Other workers learn of it from their next call
        or lease, within about a second; until then they may still call it seen.

        :raises BackendError: if Redis cannot be used, whatever the policy.
        :raises FilterLostError: under the policy ``close``, if the filter has vanished.
        """
        return self.forget_many([fingerprint])[0]

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make fingerprints new again; return for each, in order, whether it was there.

        :raises BloomError: as :meth:`forget` does.
        """
        self._notice_fork()
        known = list(fingerprints)
        different = [*dict.fromkeys(known)]
        there = dict(zip(different, self._spread(different, Shard.forget), strict=True))
        # Of repeats the first one takes the answer; for the others it is gone.
        return [there.pop(fingerprint, False) for fingerprint in known]

    def info(self) -> FilterInfo:
        """Return the state of the filter now, from a sample of it.

        :raises BackendError: if Redis cannot be used.
        """
        shards = ((shard.place, shard.header, shard.plan) for shard in self._shards)
        return describe(shards, self._error_rate)

    def numbers(self) -> dict[str, float]:
        """Return what went over the wire, by the names in :class:`Counters`."""
        return asdict(self.counters)

    def clear(self) -> bool:
        """Forget everything; return False, with nothing done, if other workers may use the filter.

        This worker goes on using it, empty or not. Takes about a second if others use it, 10 s if
        one was killed, and 20 s at most: other workers count as dead only after the server was seen
        to be well for 10 s and they gave no sign of life. False also if another worker has cleared
        the filter at the same moment, or if the options say that the crawl does not use the request
        queue beside it, and requests wait there.

        :raises BackendError: if Redis cannot be used, or takes no writes.
        """
        return self._clear(stay=True)

    def delete(self) -> bool:
        """Delete the filter as :meth:`clear` empties it, for a worker that has finished.

        Where others use it, this one no longer counts as using it until it adds again. So of
        workers that finish at the same time the last one deletes it.

        :raises BackendError: if Redis cannot be used, or takes no writes.
        """
        return self._clear(stay=False)

    def new_queue_worker(self) -> str:
        """Return a name for a worker of the request queue beside the filter, never the same.

        The first one is the name of this worker in the filter, so that people find it in both.
        """
        self._notice_fork()
        now = self._shards[0].registration
        if now is None or self._has_queue:
            return new_worker()
        self._has_queue = True
        return now.worker

    def close(self) -> None:
        """Leave the register. A second call does nothing.

        The last worker deletes the filter, if it was told not to keep it.
        """
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        try:
            if not self._keep:
                self.delete()
        except BackendError as error:
            logger.warning("The filter was not deleted: %s", error)
        for shard in self._shards:
            shard.leave()
        self._heartbeat.stop()
        self._client.close()

    def _clear(self, *, stay: bool) -> bool:
        self._notice_fork()
        shards = self._shards
        cleared = False
        with ExitStack() as locks:
            for shard in shards:
                locks.enter_context(shard.lock)
                shard.rest()
            try:
                looks = (shard.look for shard in shards)
                if wait_deserted(looks, self._stopped) and not self._hides_requests():
                    cleared = all(shard.clear(stay=stay) for shard in shards)
            except BackendError:
                for shard in shards:
                    shard.resume_later()
                raise
            for shard in shards:
                if stay:
                    shard.resume()
                elif not cleared:
                    shard.forget_cache()
        return cleared

    def _hides_requests(self) -> bool:
        """Return whether requests have come beside the filter that this crawl does not fetch."""
        return self._beside is False and any(
            QueueReader(shard.place).held() for shard in self._shards
        )

    def _unknown(self, fingerprints: Iterable[bytes]) -> list[bytes]:
        if len(self._shards) == 1:
            return self._shards[0].unknown(fingerprints)
        return [one for one in fingerprints if not self._shard(one).knows(one)]

    def _add_unknown(self, fingerprints: list[bytes]) -> list[bool]:
        self._notice_fork()
        try:
            return self._spread(fingerprints, Shard.add)
        except BloomError:
            for fingerprint in fingerprints:
                self._shard(fingerprint).disown([fingerprint])
            raise

    def _spread(
        self, fingerprints: list[bytes], ask: Callable[[Shard, list[bytes]], list[bool]]
    ) -> list[bool]:
        """Ask each shard for its part; `fingerprints` may repeat."""
        if len(self._shards) == 1:
            return ask(self._shards[0], fingerprints)
        return ask_each(self._shard, fingerprints, ask)

    def _notice_fork(self) -> None:
        """Make a forked child a worker of its own."""
        if os.getpid() == self._pid:
            return
        self._pid = os.getpid()
        self._alarm = threading.Event()
        for shard in self._shards:
            shard.after_fork(self._alarm)
        self._heartbeat = self._start_heartbeat()

    def _start_heartbeat(self) -> Heartbeat:
        heartbeat = Heartbeat(self._shards, self._alarm)
        heartbeat.start()
        return heartbeat


def _open_shards(
    target: Target,
    plans: list[Plan],
    options: RedisOptions,
    counters: Counters,
    alarm: threading.Event,
) -> tuple[Client, list[Shard], int]:
    # A check makes two tries before it gives up.
    client = target.connect(options.timeout / 2)
    server = target.where()
    shards: list[Shard] = []
    try:
        places = [_place(client, server, plan, options) for plan in plans]
        if options.beside is False:
            check_empty(places)
        if options.beside and len(places) > 1:
            check_whole(places)
        unmarked = count_unmarked(places) if options.beside else 0
        for plan, place in zip(plans, places, strict=True):
            shard = Shard(
                place,
                plan,
                cache=options.cache // options.shards,
                shared_queue=options.shared_queue,
                breaker=CircuitBreaker(server, options, counters, alarm),
                counters=counters,
            )
            shards.append(shard)
    except BaseException:
        deadline = time.monotonic() + options.timeout
        for shard in shards:
            if time.monotonic() < deadline:  # a lease that cannot be given up ends by itself
                shard.leave()
        client.close()
        raise
    return client, shards, unmarked


def _place(client: Client, server: str, plan: Plan, options: RedisOptions) -> Place:
    place = Place(
        client,
        server,
        shard_key(options.key, plan.shard),
        options.timeout / 2,
        options.words,
        layout_of(options.layout).commands,
    )
    if is_cluster(client):
        place.check_slot()
    return place


def _patiently(
    options: RedisOptions, open_shards: Callable[[], tuple[Client, list[Shard], int]]
) -> tuple[Client, list[Shard], int]:
    """Open the shards, and under the policy ``wait`` try for as long as it says."""
    deadline = time.monotonic() + options.wait
    told = False
    while True:
        try:
            return open_shards()
        except BackendError as error:  # noqa: PERF203 - once a second
            left = deadline - time.monotonic()
            if options.on_error is not OnBackendError.WAIT or error.refused or left <= 0:
                raise
            if not told:
                logger.warning("%s Waiting for it for up to %.0f s.", error, left)
                told = True
            pause = min(deadline, time.monotonic() + 1)
            while time.monotonic() < pause:
                if options.stopped():
                    raise
                time.sleep(0.1)
