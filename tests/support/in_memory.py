"""A backend that keeps a crawl in memory: what the port asks of one, and no more."""

import pickle
import time
from collections import Counter
from math import inf
from os import urandom
from types import SimpleNamespace

from scrapy_bloom import stats
from scrapy_bloom.crawl.account import Account
from scrapy_bloom.crawl.backend import Backend
from scrapy_bloom.crawl.failed import Failed
from scrapy_bloom.crawl.history import START
from scrapy_bloom.crawl.later import REST
from scrapy_bloom.crawl.outcomes import APART, MOST_UNPARSED, REDIRECTED, Ended, Reason
from scrapy_bloom.crawl.report import end_crawl
from scrapy_bloom.crawl.serialize import Unstorable, read_request
from scrapy_bloom.filter.info import FilterInfo


class InMemory(Backend):
    """Keeps a crawl in `kept.state`, as of its last exchange.

    That has marks, with when each was added, and those of requests in memory; a row for each
    request that is not done, on the failed list if it has `failed`, in a `run`; as what pages
    count; until when slots are left alone. All times are dates.
    """

    kind, interval, unsaid = "kept", 60.0, 0

    def __init__(self, crawl, kept):
        self._crawl, self._report, self._kept = crawl, crawl.report, kept
        new = SimpleNamespace(run=0, marks={}, withheld=set(), rows={}, ended={}, holds={})
        self._state = pickle.loads(kept.state) if kept.state else new
        self._state.run += 1
        self.forget_many(self._state.withheld)
        self._state.withheld, self.exchange_at = set(), inf
        self._late = time.monotonic() + APART
        for row in self._state.rows.values():
            row.in_flight = False
        self._let_fail_what_is_astray()

    def _let_fail_what_is_astray(self):
        rows = [row for row in self._state.rows.values() if row.failed]
        ways = {mark for row in rows if not row.failed.unparsed for mark in row.failed.way}
        for row in rows:
            way = row.failed.way if row.failed.leads_to_seen else ()
            if {*way[-1:]} & ways - self._state.marks.keys():
                row.failed = Failed.of(row.body, Reason(REDIRECTED), row.failed.date)
                row.body, row.run = row.failed.body, row.run - 1

    def _changed(self):
        self.exchange_at = min(self.exchange_at, time.monotonic() + self.interval)

    # Marks and requests

    def offer(self, request, not_before, mark, max_age):
        state, now = self._state, time.time()
        if mark in state.marks and (max_age is None or now - state.marks[mark] < max_age):
            return True
        if mark is not None:
            state.marks[mark] = now
        self._changed()
        start = self._crawl.start_of(request) if mark is None else b""
        if start:
            request.meta[START] = start
            state.ended.pop(start, None)
            if start in state.rows:
                state.rows[start].failed = None
                return False
        row = SimpleNamespace(id=start or urandom(8), in_flight=False, failed=None)
        row.priority, row.slot = request.priority, self._crawl.engine.slot_of(request)
        row.due = now + not_before - time.monotonic() if not_before else 0.0
        try:
            row.body = pickle.dumps(request.to_dict(spider=self._crawl.spider))
        except Exception as error:
            raise Unstorable(error, request, pickle.dumps) from error
        state.rows[row.id] = row
        return False

    def __contains__(self, mark):
        return mark in self._state.marks

    def forget_many(self, marks):
        self._changed()
        return [self._state.marks.pop(mark, None) is not None for mark in marks]

    def withhold(self, marks, *, is_over=False):
        self._changed()
        withheld = self._state.withheld
        (withheld.difference_update if is_over else withheld.update)(marks)

    def take(self):
        ready, _, again = self._rows()
        ready.sort(key=lambda row: -row.priority)
        rests = self._crawl.engine.has_started and not self._crawl.engine.busy
        for row in ready + again * (rests or time.monotonic() > self._late):
            if not self._until(row.slot, row.due):
                row.failed, row.in_flight = None, True
                try:
                    return read_request(row.body, self._crawl.spider), row
                except Exception:  # it stays
                    self._report.add(stats.UNREADABLE)
        return None

    def release(self, taken, ended, start=b""):
        self._changed()
        if taken is not None:
            del self._state.rows[taken.id]
        if ended is not Ended.REPLACED:
            self._state.ended[start or urandom(8)] = ended.value

    def fail(self, taken, reason, way, start=b""):  # noqa: ARG002 - it is its id
        if taken is None:
            self._state.ended[urandom(8)] = "not kept"
            return True
        kept = self.account().unparsed
        taken.failed = Failed.of(taken.body, reason, time.time(), way=way)
        if taken.failed.unparsed and kept >= MOST_UNPARSED:
            self._state.ended[taken.id] = "not kept"
            del self._state.rows[taken.id]
            self._report.not_kept(kept)
        if not taken.failed.unparsed:
            self.forget_many(way)
            taken.failed = taken.failed._replace(way=way)
        taken.body, taken.in_flight, taken.run = taken.failed.body, False, self._state.run
        return taken.failed.unparsed

    def hold(self, request, seconds):
        slot, until = self._crawl.engine.slot_of(request), time.time() + seconds
        self._state.holds[slot] = max(self._state.holds.get(slot, 0.0), until)
        self._changed()

    def held_until(self, request):
        return self._until(self._crawl.engine.slot_of(request))

    @property
    def dirty(self):
        return self.exchange_at < inf

    async def exchange(self, *, busy, in_memory):  # noqa: ARG002 - nobody else is there
        self.exchange_at = inf
        if not self.broken:
            self._kept.state = pickle.dumps(self._state)
        return not self.broken

    def give_up(self, error):
        self.broken = True
        end_crawl(self._crawl.crawler, self._report, error)

    async def close(self):
        for row in self._state.rows.values():
            row.in_flight = False  # it waits for the next run
        self._report.account = self.account()
        return not self.broken

    def _rows(self):
        """Return what is ready, what waits, and what has failed in earlier runs."""
        ready, waits, again = [], [], []
        for row in self._state.rows.values():
            if not (row.failed or row.in_flight):
                (waits if self._until(row.slot, row.due) else ready).append(row)
            elif row.failed and row.run < self._state.run and not row.failed.unparsed:
                again.append(row)
        return ready, waits, again

    def _until(self, slot, due=0.0):
        """Return when a row may be taken, by `time.monotonic()`; 0 if it may."""
        left = max(due, self._state.holds.get(slot, 0.0)) - time.time()
        return time.monotonic() + left if left > 0 else 0.0

    def __len__(self):
        return sum(map(len, self._rows()[:2]))

    @property
    def later(self):
        return sum(row.due > time.time() for row in self._rows()[1])

    def pending(self):
        ready, _, again = self._rows()
        return bool(ready or again or self.next_start <= time.monotonic() + REST)

    @property
    def over(self):
        return not any(self._rows())

    @property
    def next_start(self):
        return min((self._until(row.slot, row.due) for row in self._rows()[1]), default=inf)

    def resting(self):
        ready, waits, _ = self._rows()
        return len(waits), 0.0 if ready else self.next_start

    def account(self):
        rows, counts = self._state.rows.values(), Counter(self._state.ended.values())
        failed, unparsed = reasons = Counter(), Counter()
        for row in rows:
            if row.failed:
                reasons[row.failed.unparsed][row.failed.kind] += 1
        where = len(self), sum(row.in_flight for row in rows)
        return Account(counts["done"], *where, failed, unparsed, counts["not kept"])

    def info(self):
        return FilterInfo(1_000_000, 1e-6, len(self._state.marks), 0.0, 0.0, 0.0, 0, 0, 1)

    def describe(self):
        return ()
