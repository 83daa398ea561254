"""What one worker sends to Redis, call by call, and what it has taken there.

The backend decides what to send and when; the worker below sends it, and knows the answers.

A request is in exactly one place: in the buffer or the call of the worker that made it, waiting,
taken by a worker, on the failed list, or done.
One call marks it and queues it, so mark and request live and die together.

A call has three steps, so that the event loop never waits for the server: :meth:`prepare` builds
it, :meth:`carry_out` makes it in a thread, and :meth:`settle` applies the answer.

If the key is not as this worker knows it, the call ends in a :class:`Surprise`. Then
:meth:`carry_out` opens the key again, and this worker takes a new name. The answer says that what
was taken is void, and whether the caller must begin again: offer what was not begun, and run
``start()``.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from scrapy_bloom.crawl.account import Account
from scrapy_bloom.crawl.backend import EACH
from scrapy_bloom.crawl.scrapy.downloads import UNPACED, Pace
from scrapy_bloom.errors import BloomError
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.member import Entry, Taken
from scrapy_bloom.redis.plan import BATCH, Plan
from scrapy_bloom.redis.reader import Reader
from scrapy_bloom.redis.wire import DONE, Answer, Call, Ending, NewFailedRow
from scrapy_bloom.redis.worker import AHEAD, MOST_DEATHS, Surprise, Worker

logger = logging.getLogger(__name__)

_LATEST: Final = 50  # of so many answers: the next one is expected as soon as four of five came

_ENTRY_BYTES: Final = 64  # besides fingerprint and body


class SharedQueue:
    """One worker's side of a crawl: what it sends next, and what it has taken.

    :param link: runs the scripts.
    :param key: of the filter.
    :param plan: with project, spider and order.
    :raises BackendError: if the server cannot be used.
    :raises StateError: if something else is under the key, or another crawl.

    Attributes:
        link: as given.
        reader: looks at what is there.
        next_call: what it sends beside entries, which :meth:`offer` adds.
        offering: how many entries wait here, or are being sent.
        unwritten: their size: bodies, and :data:`EACH` for each.
        taken: requests that this worker has taken and not reported, as far as is known.
        surprises: how often the server has lost something, or this worker its lease.
        worker: makes the calls, and says how many requests there are and which marks are known.
    """

    def __init__(self, link: Link, key: str, plan: Plan) -> None:
        self.link, self.reader = link, Reader(link, key)
        self.offering = self.unwritten = self.surprises = 0
        self.next_call = Call()
        self.worker = Worker(link, key, plan)
        self.worker.comes = True
        self.worker.prepare()
        self._buffer: deque[Entry] = deque()
        self._call: Call | None = None  # until it is answered
        self.taken: set[Taken] = set()
        self._call_began = 0.0  # when the last call began
        self._took = deque([AHEAD], maxlen=_LATEST)  # seconds until answers came, at first a guess
        self._surprise: Surprise | None = None  # until the key is open again
        link.start_heartbeats(self.worker.keep_alive)

    # What is sent

    def offer(self, entry: Entry) -> None:
        """Send an entry with one of the next exchanges."""
        self._buffer.append(entry)
        self.offering += 1
        self.unwritten += len(entry.body) + EACH

    def end(self, taken: Taken | None, ending: Ending = DONE) -> None:
        """Report how a request has ended, if this worker still has it.

        :param taken: None for one that was only in memory.
        """
        if taken is None or self._had(taken):
            self.next_call.ended.setdefault(ending, []).append(taken.id if taken else b"")

    def fail(self, taken: Taken, row: NewFailedRow) -> None:
        """Report that no callback got a request, if this worker still has it."""
        if self._had(taken):
            self.next_call.failures.append(row)

    def requeue(self, taken: Taken) -> None:
        """Requeue a request that was not begun, if this worker still has it."""
        if self._had(taken):
            self.next_call.back.append(taken.id)

    def refuse(self, taken: Taken) -> None:
        """Put a request that cannot be read on the failed list, if this worker still has it."""
        if self._had(taken):
            self.next_call.unreadable.append(taken.id)

    def _had(self, taken: Taken) -> bool:
        """Let go of a request; return whether this worker still had it, as far as is known."""
        ours = taken in self.taken
        self.taken.discard(taken)
        return ours

    def give_back_turn(self, taken: Taken) -> None:
        """Give back the turn of a request that was not sent; say so before it is done.

        Of several requests of a slot, the latest goes first.
        """
        if taken in self.taken:
            self.next_call.unused.append(taken.id)

    @property
    def has_work(self) -> bool:
        """Whether there is anything to send."""
        call = self.next_call
        ended = call.ended, call.not_kept, call.failures, call.back, call.unreadable
        return bool(self._call or self._buffer or any(ended) or call.unused or call.pauses)

    @property
    def has_lease(self) -> bool:
        """Whether this worker cannot have been taken for dead, as far as it knows."""
        return self.worker.renewed > time.monotonic() - upkeep.LEASE

    # Calls

    def prepare(
        self,
        want: int,
        *,
        look: bool = False,
        default: Pace = UNPACED,
        busy: Sequence[bytes] = (),
        slack: float = 0.0,
        through: bool = True,
        idle: bool = False,
    ) -> Call | None:
        """Return the call to make: the last one if it was not answered; None if there is none.

        :param want: how many requests to take.
        :param look: whether to call even if there is nothing to send.
        :param default: the pace of slots that have no other, for this worker.
        :param busy: slots of which it has enough requests.
        :param slack: seconds that its turns should last.
        :param through: whether ``start()`` is through.
        :param idle: whether ``start()`` is through and nothing is in flight here.
        """
        take = min(BATCH, want)
        # Without a lease, whatever has become of it is only learnt by a call.
        if self._call is None and (self.has_work or take or look or not self.has_lease):
            call, self._call, self.next_call = self.next_call, self.next_call, Call()
            if call.failures:
                self._fill(call)
            while self._buffer and len(call.entries) < BATCH:
                size = _ENTRY_BYTES + len(self._buffer[0].body)
                if (call.entries or call.failures) and size > call.room:
                    break
                call.entries.append(self._buffer.popleft())
                call.room = max(0, call.room - size)
            call.take, call.default, call.busy, call.through = take, default, busy, through
            call.idle, call.alone = idle, not self.taken
            call.lead, call.slack = sorted(self._took)[4 * len(self._took) // 5], slack
            call.risky = any(taken.deaths >= MOST_DEATHS - 1 for taken in self.taken)
        self._call_began = time.monotonic()
        return self._call

    def _fill(self, call: Call) -> None:
        """Let a call take a batch of failed requests, as it has room, and the next one the rest."""
        failures = call.failures
        for count, row in enumerate(failures):
            call.room -= len(row.original.body)
            if count and (call.room < 0 or count == BATCH):
                call.failures, self.next_call.failures = failures[:count], failures[count:]
                break
        call.room = max(0, call.room)

    def carry_out(self, call: Call) -> Answer:
        """Make a call. This may run in a thread: it leaves the buffers alone.

        :raises BloomError: if there was no answer. The same call comes next.
        """
        if self._surprise is None:
            try:
                return self.worker.call(call)
            except Surprise as surprise:
                self._surprise = surprise
        loss = self.worker.reopen(self._surprise)
        self._surprise = None
        if loss:
            logger.warning(
                "%s: %s. This worker starts over: it runs start() again, and pages may be fetched"
                " again. Every page that start() or another page links to is still fetched.",
                *(self.worker.place, loss),
            )
        else:
            logger.warning(
                "%s: this worker missed its lease of %g s: it was suspended, or could not reach"
                " Redis. Other workers have the requests it had taken. It continues.",
                *(self.worker.place, upkeep.LEASE),
            )
        return Answer(void=True, start_over=bool(loss))

    def settle(self, call: Call, answer: Answer) -> Sequence[tuple[Entry, bool]]:
        """Apply the answer to a call; return the verdicts, also on entries that need not be sent.

        These stand for what was taken, as retries do: others who have that by now send such, too.
        """
        self._call = None
        self._took.append(time.monotonic() - self._call_began)
        if answer.void:
            self.worker.known.clear()
            self.surprises += 1
            # Entries and paces are sent again. What was taken is no longer ours.
            self._buffer.extendleft(reversed(call.entries))
            self.next_call = Call(paces=call.paces | self.next_call.paces)
            void, self.taken = self.taken, set()
            return () if answer.start_over else self._drop_void(void)
        self.taken.difference_update(each.instead for each, seen in answer.verdicts if not seen)
        self.taken.update(answer.taken)
        self._record_sent(call.entries)
        # Only from here on do the verdicts reach their caller.
        forgotten = {entry.fingerprint for entry in call.entries if entry.op == "x"}
        self.worker.learn(
            entry.fingerprint
            for entry in call.entries
            if entry.fingerprint is not None
            and entry.op == "f"
            and entry.max_age is None
            and entry.fingerprint not in forgotten
        )
        return answer.verdicts

    def _drop_void(self, void: Iterable[Taken]) -> Sequence[tuple[Entry, bool]]:
        """Drop the entries that stand for what others have by now; return their verdicts."""
        for taken in void:
            taken.void = True
        entries = [each for each in self._buffer if each.instead is not None and each.instead.void]
        self._buffer = deque(each for each in self._buffer if each not in entries)
        self._record_sent(entries)
        return [(each, False) for each in entries]

    def _record_sent(self, entries: Sequence[Entry]) -> None:
        self.offering -= len(entries)
        self.unwritten -= sum(len(entry.body) + EACH for entry in entries)

    def is_over(self) -> bool:
        """Return whether no worker has anything to do, after a call."""
        counts = self.worker.counts
        return not (self.has_work or counts.waiting or counts.taken or counts.more)

    def close(self, *, through: bool = False) -> Account | None:
        """Put back what was taken and is not done, and release the lease.

        :param through: whether all that ``start()`` yields is stored, or was.
        :returns: what has become of all pages, if the server says so.
        """
        calls = (self.next_call,) if self._call is None else (self._call, self.next_call)
        unacknowledged = b"".join(call.settled_ids for call in calls)  # it may still have them
        account = (
            self._account()
            if self.worker.close(self.taken, unacknowledged, through=through)
            else None
        )
        self.link.close()
        return account

    def _account(self) -> Account | None:
        try:
            account = self.reader.account(self.reader.existing().counts)
        except BloomError:  # it is gone meanwhile, or out of reach
            return None
        # What others have in flight waits, as this worker sees it.
        return account._replace(waiting=account.waiting + account.in_flight, in_flight=0)
