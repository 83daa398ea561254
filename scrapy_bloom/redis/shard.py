"""One shard of a filter as one worker sees it: every fingerprint gets one verdict, or "new".

The ledger knows what need not be asked; `calls` asks, and returns as a value what Redis said. Only
the shard recovers: if filter or registration are gone it opens or registers again, and forgets what
the worker remembers.

If a reply never arrives, the worker claims those fingerprints: `add()` reports them new (under the
policy ``close`` it raises, and the retry reports them new). If such a call is carried out late, it
marks what this worker was granted; if that happens after the worker's next call, it is refused for
its number.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from threading import Event, Lock
from typing import Final

import redis

from scrapy_bloom.core.growth import outgrown
from scrapy_bloom.errors import BackendError, FilterLostError
from scrapy_bloom.options import CAPACITY, ON_BACKEND_ERROR, OnBackendError
from scrapy_bloom.redis import pace
from scrapy_bloom.redis.breaker import CircuitBreaker
from scrapy_bloom.redis.calls import Calls, Gone, Growth, Reply
from scrapy_bloom.redis.connection import FAULTS
from scrapy_bloom.redis.counters import Counters
from scrapy_bloom.redis.header import Header, Plan, StoredSlice
from scrapy_bloom.redis.ledger import Ledger
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.membership import Membership, Registration
from scrapy_bloom.redis.place import Place
from scrapy_bloom.redis.scripts import BATCH
from scrapy_bloom.redis.watch import Watch

logger = logging.getLogger(__name__)

Ask = Callable[[Registration, Sequence[bytes], Growth | None], Reply | Gone]
"""Makes one call that adds fingerprints; see :meth:`Calls.add`."""

_AGES: Final = 100_000
"""Most pages whose dates a worker keeps itself."""


class _UnknownVerdictError(Exception):
    """A call may have been carried out and cannot be repeated any more."""


class Shard:
    """One shard, found or made.

    :param place: where it is.
    :param plan: what it must be.
    :param cache: how many fingerprints to remember.
    :param shared_queue: whether the requests wait in Redis, too: see :class:`Ledger`.
    :param breaker: what to do while its server cannot be used.
    :param counters: where round trips and the like are counted.
    :raises BackendError: if the server cannot be used.
    :raises StateError: if something else is in its place.

    Attributes:
        knows: returns whether the worker can say by itself that a fingerprint was seen.
        unknown: returns the fingerprints that the worker does not know by itself, in order.
        disown: notes that nobody was granted these: "seen" must not come of this add.
        lock: held by whoever makes calls or changes the registration: the crawl or, beside it, the
            heartbeat. It is not needed to renew the lease.
        queue_apart: whether the requests wait beside it. Then a loss ends the crawl.
    """

    def __init__(
        self,
        place: Place,
        plan: Plan,
        *,
        cache: int,
        shared_queue: bool,
        breaker: CircuitBreaker,
        counters: Counters,
    ) -> None:
        self.place = place
        self.breaker = breaker
        self._counters = counters
        self._ledger = Ledger(cache, shared_queue=shared_queue)
        self._link = Link(place, breaker)
        self._membership = Membership(self._link, plan)
        self._calls: Calls
        self._failure: FilterLostError | None = None  # to be raised by the next add
        self._forgotten = 0  # how many items were taken out, as far as the ledger knows
        self.lock = Lock()
        self.queue_apart = False
        self._let_through: dict[bytes, float] = {}  # by this worker, for their age: when that was
        self._told = False  # whether the user knows that a filter with a window has outgrown it
        self._lasts_until = inf  # when something is forgotten for its age, on the monotonic clock
        self.knows = self._knows if plan.window else self._ledger.knows
        self.unknown = self._unknown if plan.window else self._ledger.unknown
        self.disown = self._ledger.doubt
        with place.explained():
            self._open()
            header = self._ensure_open().header
            live = header.live(self._link.now()) if plan.window else header
            self.restored, self.marked = live.items, live.marked

    @property
    def doubted(self) -> Collection[bytes]:
        """Fingerprints that a failed call may have marked, and that nobody was granted."""
        return self._ledger.doubted

    @property
    def registration(self) -> Registration | None:
        """The worker's place in the filter; None after :meth:`clear`."""
        return self._membership.registration

    @property
    def plan(self) -> Plan:
        """What it must be."""
        return self._membership.plan

    @property
    def header(self) -> Header | None:
        """What the filter is, as it was found; None after :meth:`clear`."""
        return self.registration.header if self.registration else None

    def add(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Add different fingerprints that the worker does not know; return which were there.

        :raises BackendError: under the policy ``close``, if the server cannot be used.
        :raises FilterLostError: under the policy ``close``, if the filter has vanished.
        """
        verdicts: list[bool] = []
        for start in range(0, len(fingerprints), BATCH):
            with self.lock:
                verdicts += self._add(fingerprints[start : start + BATCH])
        return verdicts

    def add_through(self, ask: Ask, fingerprints: Sequence[bytes]) -> list[bool]:
        """Add different fingerprints as :meth:`add` does, by other calls; at least one is made.

        Grants nothing by itself, whatever the policy is, and waits for no server.

        :param ask: makes one call. It sees to itself that a call may be repeated.
        :raises BackendError: if the server cannot be used.
        :raises FilterLostError: under the policy ``close``, if the filter has vanished.
        """
        with self.lock:
            if not self.breaker.usable:
                raise self.breaker.error()
            self._raise_failure()
            verdicts = self._add_until_done(fingerprints, wait=False, ask=ask)
            return self._ledger.settle(fingerprints, verdicts)

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether a page was let through less than `max_age` seconds ago; if not, do so.

        While Redis cannot be asked, only this worker's own pages are known.

        :raises BackendError: under the policy ``close``, if the server cannot be used.
        :raises FilterLostError: under the policy ``close``, if the filter has vanished.
        """
        began = time.monotonic()
        with self.lock:
            last = self._let_through.get(fingerprint)
            if last is not None and began - last < max_age:
                self._counters.local += 1
                return True

            def ask(_: Registration, some: Sequence[bytes], growth: Growth | None) -> Reply | Gone:
                return self._calls.add(some, growth, max_age=max_age)

            seen = self._add([fingerprint], ask)[0]
            if not seen:
                if len(self._let_through) >= _AGES:
                    self._let_through.clear()
                self._let_through[fingerprint] = began
        return seen

    def contains(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return which fingerprints are there; False where that cannot be known.

        :raises BackendError: under the policy ``close``, if the server cannot be used.
        :raises FilterLostError: under the policy ``close``, if the filter has vanished.
        """
        verdicts: list[bool] = []
        try:
            self.breaker.check()
            for start in range(0, len(fingerprints), BATCH):
                with self.lock:
                    verdicts += self._contains(fingerprints[start : start + BATCH])
        except (BackendError, FilterLostError):
            if self.breaker.policy is OnBackendError.CLOSE:
                raise
            return [False] * len(fingerprints)
        self.breaker.reset()
        return verdicts

    def forget(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Take fingerprints out; return which were there.

        :raises BackendError: if the server cannot be used. They may have been taken out.
        :raises FilterLostError: under the policy ``close``, if the filter has vanished.
        """
        there: list[bool] = []
        for start in range(0, len(fingerprints), BATCH):
            with self.lock:
                there += self._forget(fingerprints[start : start + BATCH])
        return there

    def beat(self) -> bool:
        """Renew the lease, and notice beside the crawl what was lost.

        Called by the heartbeat's thread; returns whether all is well.
        """
        now, breaker = self.registration, self.breaker
        if now is None and not breaker.tripped:
            return True
        try:
            word = self._membership.renew(now) if now else self._link.probe()
        except FAULTS:
            return False
        breaker.allow_try()
        if now is not None and not now.resting:
            self._tend(now, word)
        return not breaker.tripped

    def node(self) -> str:
        """Name the node of a cluster that has the shard now."""
        return self.place.node

    def rest(self) -> None:
        """Give up the lease with the next look at the others."""
        self._membership.rest()

    def look(self, watch: Watch) -> bool:
        """Look at the other workers; return whether the filter is still there.

        :raises BackendError: if the server cannot be used.
        """
        with self.place.explained():
            return self._membership.look(watch)

    def clear(self, *, stay: bool) -> bool:
        """Delete the filter unless another worker is registered; return whether it was deleted.

        :param stay: whether to put an empty one in its place.
        :raises BackendError: if the server cannot be used.
        """
        with self.place.explained():
            cleared = self._membership.clear(stay=stay)
        if cleared or self.registration is None:
            self._ledger.clear()
            self._begin_calls()
        return cleared

    def resume(self) -> None:
        """Take up the lease again after :meth:`rest`, or open the filter that replaced ours."""
        try:
            self._ensure_open()
        except BackendError:
            self.resume_later()

    def resume_later(self) -> None:
        """Let the heartbeat take up the lease again after :meth:`rest`."""
        self._membership.resume_later()

    def forget_cache(self) -> None:
        """Ask Redis again from now on: another worker may clear the filter."""
        self._ledger.forget()

    def leave(self) -> None:
        """Take the worker off the register, if that can be done now."""
        membership = self._membership
        with suppress(*FAULTS), self.lock:
            if membership.registration is not None and self.breaker.usable:
                membership.leave()
        membership.registration = None

    def after_fork(self, alarm: Event) -> None:
        """Register the forked child as a separate worker.

        If parent and child shared call numbers, they would get each other's replies.
        """
        self.breaker.alarm = alarm
        self.lock = Lock()  # the heartbeat of the parent may have held the old one
        if self.registration is None:
            return
        try:
            with self._link.tripping():
                registered = self._membership.register_again()
        except BackendError:
            registered = False
        if not registered:
            self._membership.rename()
        self._begin_calls()

    # Verdicts

    def _add(self, fingerprints: Sequence[bytes], ask: Ask | None = None) -> list[bool]:
        self._unlearn()
        try:
            self.breaker.check()
            self._raise_failure()
            verdicts = self._add_until_done(fingerprints, ask=ask)
        except _UnknownVerdictError:
            return self._let_in(fingerprints)
        except (BackendError, FilterLostError):
            if self.breaker.policy is not OnBackendError.CLOSE:
                return self._let_in(fingerprints)
            raise
        return self._ledger.settle(fingerprints, verdicts)

    def _unlearn(self) -> None:
        """Ask Redis again for what this worker knows, if somebody has taken items out."""
        if self._forgotten != self._membership.forgotten:
            self._forgotten = self._membership.forgotten
            self._ledger.forget()
            self._let_through.clear()
        self._forget_old()

    def _forget_old(self) -> None:
        """Forget what the filter may have forgotten for its age."""
        if time.monotonic() >= self._lasts_until:
            self._lasts_until = inf
            self._ledger.forget()

    def _knows(self, fingerprint: bytes) -> bool:
        self._forget_old()
        return self._ledger.knows(fingerprint)

    def _unknown(self, fingerprints: Iterable[bytes]) -> list[bytes]:
        self._forget_old()
        return self._ledger.unknown(fingerprints)

    def _let_in(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Call all new, because Redis cannot tell."""
        self._counters.unknown += len(fingerprints)
        self._ledger.let_through(fingerprints)
        return [False] * len(fingerprints)

    def _add_until_done(
        self, fingerprints: Sequence[bytes], *, wait: bool = True, ask: Ask | None = None
    ) -> list[bool]:
        """Return the verdicts of Redis, in as many calls as it takes for the filter to grow.

        :param wait: whether to wait in an outage, if the policy says so.
        :param ask: makes the calls; None for those of this class.
        """
        verdicts: list[bool] = []
        growth: Growth | None = None
        while True:
            reply = self._call(fingerprints[len(verdicts) :], growth, wait=wait, ask=ask)
            verdicts += reply.verdicts
            if reply.slices:
                growth = self._growth(reply.slices, due=reply.due)
            self._notice(reply)
            if reply.error:
                self._ledger.doubt([fingerprints[len(verdicts)]])
                self._wait_out(reply.error, wait=wait)
            elif len(verdicts) == len(fingerprints):
                self.breaker.reset()
                return verdicts

    def _wait_out(self, error: str, *, wait: bool) -> None:
        """Wait, if the policy says so, until a call may be tried again.

        :raises BackendError: if that takes too long.
        """
        self.breaker.trip(self.place.explain(redis.ResponseError(error)))
        if not (wait and self.breaker.wait()):
            raise self.breaker.error()

    def _call(
        self,
        fingerprints: Sequence[bytes],
        growth: Growth | None,
        *,
        wait: bool,
        ask: Ask | None = None,
    ) -> Reply:
        """Make one call, and another one if Redis did not know the filter or the worker.

        :raises BackendError: if no answer came.
        :raises _UnknownVerdictError: if none came, and the call cannot be repeated.
        :raises FilterLostError: if the filter is gone and the policy is ``close``.
        """
        while True:
            now, began = self._ensure_open(), time.monotonic()
            if ask is None:
                reply = self._calls.add(fingerprints, growth, wait=wait)
            else:
                reply = ask(now, fingerprints, growth)
            if isinstance(reply, Reply):
                if now.header.plan.window:
                    self._lasts_until = began + (reply.lasts or 0)
                return reply
            self._recover(reply)
            if reply.ambiguous:
                raise _UnknownVerdictError

    def _forget(self, fingerprints: Sequence[bytes]) -> list[bool]:
        self.breaker.check()
        there: list[bool] = []
        while len(there) < len(fingerprints):
            self._ensure_open()
            reply = self._calls.forget(fingerprints[len(there) :])
            self._ledger.take_out(fingerprints)
            self._let_through.clear()
            if isinstance(reply, Gone):
                self._recover(reply)
                continue
            there += reply.verdicts
            self._notice(reply)
            if reply.error:
                self._wait_out(reply.error, wait=True)
        self.breaker.reset()
        return there

    def _contains(self, fingerprints: Sequence[bytes]) -> list[bool]:
        while True:
            self._ensure_open()
            answer = self._calls.contains(fingerprints)
            if isinstance(answer, list):
                return answer
            self._recover(answer)

    def _growth(self, slices: Sequence[StoredSlice], *, due: bool = False) -> Growth:
        """Return the slice that a full filter needs next, and tell the user when growth begins."""
        header = self._ensure_open().header
        plan = header.plan
        items = sum(slice_.items for slice_ in slices[:-1]) + slices[-1].capacity
        # With a window one slice may be left of several, and it is one of an eighth.
        grows = items >= plan.capacity and not self._told if plan.window else len(slices) == 1
        if grows and not due:
            self._told = True
            told = outgrown(items, plan.error_rate, self.place.words(CAPACITY))
            logger.warning("%s: %s", self.place.name, told)
        after = slices[-1].number + 1
        return Growth(after, header.next_slice(slices, due=due))

    # Recovery

    def _open(self, rebuilt_of: str = "") -> bool:
        made = self._membership.open(rebuilt_of)
        self._begin_calls()
        return made

    def _begin_calls(self) -> None:
        """Start to count the calls of a new registration."""
        now = self.registration
        if now is not None:
            self._calls = Calls(self._link, now, self._counters)
            self._forgotten = self._membership.forgotten

    def _ensure_open(self) -> Registration:
        """Return the registration, after opening the filter again if this worker cleared it."""
        membership = self._membership
        now = membership.registration
        if now is None or now.resting:
            with self._link.tripping():
                if now is not None and not membership.resume():
                    self._ledger.clear()
                if membership.registration is None:
                    self._open()
            now = membership.registration
        assert now is not None  # noqa: S101 - _open has set it
        return now

    def _tend(self, renewed: Registration, word: bytes) -> None:
        """Do what the crawl need not wait for, and would not do while it is idle.

        :param renewed: the registration that a beat has tried to renew.
        :param word: what came of that.
        """
        if self._forgotten != self._membership.forgotten:
            with self._unless_busy() as free:
                if free:
                    self._unlearn()
        if word != b"ok":
            with self._unless_busy() as free:
                if free and self.registration is renewed:
                    self._recover(Gone(filter=word == b"other"))

    @contextmanager
    def _unless_busy(self) -> Iterator[bool]:
        """Take the lock if nobody has it; what fails is said already, or raised by the next add."""
        free = self.lock.acquire(blocking=False)
        try:
            yield free
        except FilterLostError as error:
            self._failure = error
        except (BackendError, _UnknownVerdictError):
            pass
        finally:
            if free:
                self.lock.release()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _recover(self, gone: Gone) -> None:
        """Go on after Redis has not known the filter or the worker.

        :raises BackendError: if that cannot be, because of the server or what is in its place.
        :raises FilterLostError: if the filter is gone and the policy is ``close``.
        """
        old = self._ensure_open().header
        with self._link.tripping():
            silent = time.monotonic() - self._membership.renewed
            if not gone.filter and self._membership.register_again():
                self._begin_calls()
                if silent < pace.LEASE:  # others forget only who was silent for longer
                    self._lost(_OLDER)
                self._forget_all()
                return
            if gone.filter and self.queue_apart:
                raise lost(self.place, "has lost the filter", RESUMES)
            made = self._open(old.epoch)
            if made:
                self._membership.delete_segments(old)
        if made or self._ensure_open().header.rebuilt_of == old.epoch:
            self._lost("has lost the filter")
            return
        self._counters.losses += 1
        self._forget_all()
        logger.warning(
            "%s: the filter that this worker used is gone, another one is in its place. It goes on"
            " with that one: pages may be fetched twice.",
            self.place.name,
        )

    def _notice(self, reply: Reply) -> None:
        """Recover from what a reply tells beside its verdicts."""
        if reply.rolled_back:
            self._lost(_OLDER)
        if reply.losses > self._membership.losses:
            self._membership.losses = reply.losses
            self._lost("has lost a part of the filter")

    def _lost(self, what: str) -> None:
        """Say that marks have vanished, and go on with those that the server has.

        :raises FilterLostError: if the requests wait beside the filter, or the policy is ``close``.
        """
        self._counters.losses += 1
        self._forget_all()
        if self.queue_apart and what == _OLDER:
            raise went_back(self.place, self.plan)
        if self.queue_apart:
            raise lost(self.place, what, RESUMES)
        if self.breaker.policy is OnBackendError.CLOSE:
            policy = self.place.words(ON_BACKEND_ERROR)
            raise lost(self.place, what, f"It is an error because {policy} is 'close'.")
        way = "This worker goes on with the marks that are left."
        logger.warning("%s", lost(self.place, what, way))

    def _forget_all(self) -> None:
        """Forget what this worker knows of the filter."""
        self._ledger.forget()
        self._let_through.clear()


def lost(place: Place, what: str, way: str) -> FilterLostError:
    """Return the error for a server that has lost something.

    :param what: what it has lost; goes after "the server".
    :param way: what happens now, or what to do.
    """
    return FilterLostError(
        f"{place.name}: the server {what}. Was it restarted without persistence, flushed, or short"
        f" of memory (maxmemory-policy must be noeviction)? {way}"
    )


def went_back(place: Place, plan: Plan) -> FilterLostError:
    """Return the error for a server that has gone back to an older state of a crawl."""
    # Other shards may be newer: what they count as done may have led to requests that are gone.
    return lost(place, _OLDER, RESUMES if plan.shards == 1 else START_OVER)


_OLDER: Final = "has gone back to an older state"

RESUMES: Final = (
    "The crawl is closed. Start it again: it resumes from what the server has, or says what to do"
    " first."
)
START_OVER: Final = (
    "To lose no page, stop all workers, run 'scrapy bloom delete' and start the crawl again: it"
    " starts over."
)
"""What to do where requests have vanished and their marks have not."""
