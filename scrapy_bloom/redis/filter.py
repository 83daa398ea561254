"""A Bloom filter in Redis that any number of workers share. The requests are stored elsewhere."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from scrapy_bloom.errors import BackendError
from scrapy_bloom.filter.info import FilterInfo
from scrapy_bloom.redis.client import Server
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.plan import BATCH, Plan
from scrapy_bloom.redis.reader import Reader
from scrapy_bloom.redis.wire import Call
from scrapy_bloom.redis.worker import KNOWN, Surprise, Worker, contains_many, delete
from scrapy_bloom.settings import ON_BACKEND_ERROR, REDIS_KEY, REDIS_TIMEOUT
from scrapy_bloom.values import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    Span,
    read_age,
    read_capacity,
    read_error_rate,
    read_window,
)

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK: Final = 0.1  # seconds between looks at leases


class RedisFilter:
    """A Bloom filter that any number of workers share through Redis 6 or later, or Valkey.

    A fingerprint is granted (called new) to exactly one of them; in doubt it is called new, never
    seen.

    >>> seen = RedisFilter.from_url("redis://localhost", key="crawl:bloom")  # doctest: +SKIP
    >>> seen.add(b"one"), seen.add(b"one")  # doctest: +SKIP
    (False, True)

    If the server loses the filter, or goes back to an older state of it, the worker forgets what it
    knows and continues with what the server has. Only one thread may use a filter at a time; a
    background thread renews the lease.

    :param server: it must be reachable now: `on_error` is for later outages.
    :param key: of the filter, such as ``crawl:bloom``.
    :param plan: what the filter must be; if there is none, it is created so.
    :param on_error: what to do while Redis is unavailable. ``auto``: call pages new if this worker
        does not know them. ``close``: raise.
    :param timeout: most seconds that one call may take.
    :param known: how many fingerprints the worker remembers itself.
    :raises BackendError: if the server cannot be used.
    :raises SettingError: if a value is outside its range.
    :raises StateError: if something else is under the key, or a filter made differently.

    Attributes:
        link: runs the scripts.
        worker: makes the calls.
    """

    def __init__(
        self,
        server: Server,
        key: str,
        plan: Plan,
        *,
        on_error: str = ON_BACKEND_ERROR.default,
        timeout: float = REDIS_TIMEOUT.default,
        known: int = KNOWN,
    ) -> None:
        self._key, self._policy = key, on_error
        self._pid, self._closed = os.getpid(), False
        self._owed: set[bytes] = set()  # may be marked, and the caller knows no verdict
        self._unknown = self._surprises = 0
        self.link = Link(server, timeout)
        try:
            self.worker = Worker(self.link, key, plan, known=known)
            self.worker.prepare()
        except BaseException:
            self.link.close()
            raise
        self.link.start_heartbeats(self.worker.keep_alive)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        key: str,
        capacity: float | str = DEFAULT_CAPACITY,
        error_rate: float | str = DEFAULT_ERROR_RATE,
        window: Span | None = None,
        on_error: Literal["auto", "close"] = "auto",
        timeout: float = REDIS_TIMEOUT.default,
    ) -> Self:
        """Open the filter under a key of the server at a URL, or create it.

        :param url: ``redis://[user:password@]host[:port][/database]``, ``rediss://`` for TLS,
            ``sentinel://host,host/service``, ``unix:///path``. Any cluster node will do.
        :param key: as for the class, like `on_error` and `timeout`.
        :param capacity: items expected, 1 to 10,000,000,000, also as ``"10M"``. Beyond it the
            filter grows. To an existing filter it applies from the next time that it grows.
        :param error_rate: bound for the share of new items that are called seen, in total, from
            1e-15 to below 1.
        :param window: how long items are kept, at least, and at most an eighth longer: seconds, a
            `timedelta`, or text such as ``"30d"``; None to keep them forever.
        :raises BloomError: as the class does.
        """
        plan = Plan(
            read_capacity("capacity", capacity),
            read_error_rate("error_rate", error_rate),
            window=read_window("window", window) or 0.0,
        )
        return cls(
            Server(url),
            REDIS_KEY.read("key", key),
            plan,
            on_error=ON_BACKEND_ERROR.read("on_error", on_error),
            timeout=REDIS_TIMEOUT.read("timeout", timeout),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Public methods

    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before.

        :raises BackendError: as :meth:`add_many`.
        :raises FilterLostError: as :meth:`add_many`.
        """
        return self.add_many((fingerprint,))[0]

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; return for each, in order, whether it was there before.

        Takes one round trip per 500 fingerprints that the worker does not know.

        :raises BackendError: under the policy ``close``, if Redis is unavailable. Fingerprints of
            this batch that were granted are still called new when they are added again.
        :raises FilterLostError: if a user has deleted the filter.
        """
        given = list(fingerprints)
        unknown = [mark for mark in dict.fromkeys(given) if not self.worker.knows(mark)]
        seen = self._mark(unknown)
        # Only from here on do the verdicts reach their caller.
        self.worker.learn(unknown)
        # Of equal fingerprints, the first gets the verdict, and the others are seen.
        return [seen.pop(mark, True) for mark in given]

    def push(self, call: Call) -> Sequence[tuple[Entry, bool]]:
        """Make a call that marks pages, and pushes the requests of those that are new.

        :param call: if it was not answered, pass it again.
        :returns: for each entry, whether its page was there; nothing after a surprise: then this
            worker knows no page any more.
        :raises BackendError: if there was no answer, or its queue cannot be pushed to.
        :raises FilterLostError: as :meth:`add_many`.
        """
        self._finish_other(call)
        try:
            verdicts = self.worker.call(call).verdicts
        except Surprise as surprise:
            self._reopen(surprise)
            return []
        lasting = [each.fingerprint for each in call.entries if each.max_age is None]
        self.worker.learn(filter(None, lasting))
        return verdicts

    def add_aged(self, fingerprint: bytes, max_age: Span) -> bool:
        """Return whether this method let a fingerprint through less than `max_age` ago.

        This counts all workers, by the server's clock. If not, add it and remember the time. One
        that was added only by other methods is let through, since its time is unknown.

        :param max_age: seconds, a `timedelta`, or text such as ``"12h"``.
        :raises BackendError: as :meth:`add_many`.
        :raises FilterLostError: as :meth:`add_many`.
        """
        return self._mark([fingerprint], read_age("max_age", max_age))[fingerprint]

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether the fingerprint was added. Changes nothing."""
        return self.contains_many((fingerprint,))[0]

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added. Changes nothing.

        While Redis is unavailable, the answer is False for what the worker does not know itself.

        :raises BackendError: under the policy ``close``, if Redis is unavailable.
        :raises FilterLostError: if a user has deleted the filter.
        """

        def look(batch: list[bytes]) -> list[bool]:
            worker = self.worker
            return self._surely(
                lambda: contains_many(self.link, self._key, worker.epoch, worker.probe, batch)
            )[0]

        given = list(fingerprints)
        seen = dict(self._each([mark for mark in given if not self.worker.knows(mark)], look))
        return [seen.get(mark, False) or self.worker.knows(mark) for mark in given]

    def forget(self, fingerprint: bytes) -> bool:
        """Make a fingerprint new again; return whether it was there.

        It is then granted once more, to one worker. Others learn of it with their next call, and
        may call it seen until then.

        :raises BackendError: if Redis is unavailable, whatever the policy.
        :raises FilterLostError: if a user has deleted the filter.
        """
        return self.forget_many((fingerprint,))[0]

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make fingerprints new again; return for each, in order, whether it was there.

        :raises BloomError: as :meth:`forget` does.
        """
        given = list(fingerprints)
        different = [*dict.fromkeys(given)]
        seen = dict(self._each(different, partial(self._call_with, "x", None), "close"))
        self.worker.known.clear()
        self._owed.difference_update(different)
        return [seen.pop(mark, False) for mark in given]

    def info(self) -> FilterInfo:
        """Return the state of the filter now.

        :raises BackendError: if Redis is unavailable.
        """
        return Reader(self.link, self._key).existing().info()

    def numbers(self) -> dict[str, int]:
        """Return the counts of this worker, by stat name."""
        return {
            "round_trips": self.link.round_trips,
            "unknown": self._unknown,
            "outages": self.link.outages,
            "losses": self._surprises,
        }

    @property
    def usable(self) -> bool:
        """Whether the next check asks Redis: False after a failure, until the server answers."""
        return self.link.usable.is_set()

    def clear(self) -> bool:
        """Empty the filter; return False, with nothing done, if another worker uses it.

        A lease that is not renewed, as that of a killed worker, is waited for: up to 30 seconds.

        :raises BackendError: if Redis is unavailable.
        """
        deleted = self.delete()
        self.worker.begin_anew()
        return deleted

    def delete(self) -> bool:
        """Delete the filter, for a worker that has finished; return False as :meth:`clear` does.

        The worker leaves first: if two did this at once, each would find the other's lease.

        :raises BackendError: if Redis is unavailable.
        """
        self._check_process()
        self._owed.clear()
        self.worker.known.clear()
        self.worker.leave()
        own = {self.worker.name}
        leases = delete(self.link, self._key, own, block=False)
        if leases:
            logger.info(
                "%s: waiting for the lease of worker %s to end, at most %.0f s.",
                *(self.worker.place, *max(leases.items(), key=itemgetter(1))),
            )
        while leases:
            time.sleep(_LOOK)
            left = delete(self.link, self._key, own, block=False)
            if any(seconds > leases.get(name, 0) for name, seconds in left.items()):
                return False  # that worker lives, or has just arrived
            leases = left
        return True

    def close(self) -> None:
        """Release the lease. Later calls do nothing."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self.worker.close()
        self.link.close()

    # Internals

    def _check_process(self) -> None:
        """Make a forked child a worker of its own."""
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            self.worker.rename()
            self.link.start_heartbeats(self.worker.keep_alive)

    def _mark(self, fingerprints: list[bytes], max_age: float | None = None) -> dict[bytes, bool]:
        answers: dict[bytes, bool] = {}
        try:
            answers.update(self._each(fingerprints, partial(self._call_with, "m", max_age)))
        except BackendError:
            self._owed.update(mark for mark in fingerprints if not answers.get(mark))
            raise
        self._unknown += len(fingerprints) - len(answers)
        seen = dict.fromkeys(fingerprints, False) | answers
        owed = self._owed.intersection(answers)
        self._owed -= owed
        return seen | dict.fromkeys(owed, False)

    def _each(
        self,
        fingerprints: list[bytes],
        act: Callable[[list[bytes]], list[bool]],
        policy: str | None = None,
    ) -> Iterator[tuple[bytes, bool]]:
        """Ask about fingerprints in batches, and yield the answers.

        Some are missing if the server is unavailable and the policy is to continue without it.
        """
        self._check_process()
        for start in range(0, len(fingerprints), BATCH):
            batch = fingerprints[start : start + BATCH]
            try:
                yield from zip(batch, act(batch), strict=True)
            except BackendError:
                if (policy or self._policy) == "close":
                    raise
                return

    def _call_with(self, op: str, max_age: float | None, batch: list[bytes]) -> list[bool]:
        """Call with an entry per fingerprint; return what was there."""
        call = Call([Entry(op, mark, max_age=max_age) for mark in batch])
        self._finish_other(call)
        return self._answer(call)

    def _finish_other(self, call: Call) -> None:
        """Let another call be the next one.

        An unanswered one that forgets pages is repeated first: their requests may be lost. The
        fingerprints of one that marks count as new.
        """
        unanswered = self.worker.unanswered
        if unanswered is not None and unanswered is not call:
            if any(entry.op == "x" for entry in unanswered.entries):
                self._answer(unanswered)
            self.worker.drop_unanswered()

    def _answer(self, call: Call) -> list[bool]:
        """Repeat a call until it is answered; return what was there.

        After a surprise, an earlier try of this call may have marked its pages or not. Their
        requests are here, so they count as new.
        """
        answer, surprised = self._surely(lambda: self.worker.call(call))
        return [seen and not surprised for _, seen in answer.verdicts]

    def _surely(self, act: Callable[[], T]) -> tuple[T, bool]:
        """Call a function until no surprise comes; return its result, and whether one has come."""
        surprised = False
        while True:
            try:
                return act(), surprised
            except Surprise as surprise:  # rare
                surprised = True
                self._reopen(surprise)

    def _reopen(self, surprise: Surprise) -> None:
        """Forget what this worker knows, and continue with what the server has.

        :raises FilterLostError: if a user has deleted it.
        """
        loss = self.worker.reopen(surprise)
        self._surprises += 1
        if loss:
            logger.warning(
                "%s: %s. This worker continues with what the server has: pages may be fetched"
                " again.",
                *(self.worker.place, loss),
            )
