"""What a filter consists of: slices, each with a date. It grows, and what is over goes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

from scrapy_bloom.filter.hashing import make_probe
from scrapy_bloom.filter.sizing import (
    PARTS,
    SliceSpec,
    generation_capacity,
    generation_rate,
    next_slice,
)
from scrapy_bloom.filter.slices import Changes, Slice

logger = logging.getLogger(__name__)


class DatedSlices:
    """The slices of a filter by date, under one bound for the errors of all of them.

    Without a window all have one date, and none is ever over. With one, slices of one date are a
    generation: a new one begins every eighth of the window, and the oldest goes whole.

    :class:`~scrapy_bloom.LocalFilter` says what its parameters are, and sets all that is declared
    here before it calls :meth:`adopt`.

    Attributes:
        secret: the key of its hash, 16 bytes. Anyone who knows it can make any page look seen.
        slices: oldest first.
        next_id: the number of the next slice.
        again: fingerprints that are let through once although their bits are set, each with the
            date of the youngest slice that has it.
        ages: when pages with a maximum age were last let through, in seconds since 1970.
        changes: what has changed since this was last set to new :class:`Changes`; None, the
            default, records nothing.
    """

    capacity: int
    error_rate: float
    window: float | None
    digests: bool
    clock: Callable[[], float]
    again: dict[bytes, float]
    ages: dict[bytes, float]
    changes: Changes | None

    def adopt(self, secret: bytes, slices: list[Slice], next_id: int) -> None:
        """Take over these slices, oldest first; without any, begin the first one."""
        self.secret, self.slices, self.next_id = secret, slices, next_id
        self._growth_logged = False
        self._probe = make_probe(secret, digests=self.digests)
        self._since, self._due = inf, -inf  # the next look at the clock sets them
        if self.window is not None:
            self._rotate(self.clock())
        elif slices:
            self._use_newest()
        else:
            self._begin(0.0)

    def _begin(self, since: float) -> None:
        """Begin a new slice, and add to it from now on."""
        self.slices.append(Slice(self.next_id, since, self._next_spec(since)))
        self.next_id += 1
        self._use_newest()

    def _use_newest(self) -> None:
        """Add to the newest slice from now on, and check the others as well."""
        *older, newest = self.slices
        # Newest first: each slice holds more items than all older ones.
        self._older = tuple(slice_.blocks for slice_ in reversed(older))
        self._newest, self._blocks, self._dirty = newest, newest.blocks, newest.dirty
        self._limit = newest.spec.capacity

    def _next_spec(self, since: float) -> SliceSpec:
        capacity, rate = self.capacity, self.error_rate
        if self.window is not None:
            others = [slice_ for slice_ in self.slices if slice_.since != since]
            capacity = generation_capacity(sum(slice_.items for slice_ in others), capacity)
            rate = generation_rate([slice_.spec for slice_ in others], rate)
        generation = [slice_.spec for slice_ in self.slices if slice_.since == since]
        return next_slice(generation, capacity, rate)

    def _grow(self) -> Slice:
        items = sum(slice_.items for slice_ in self.slices)
        if items - self._newest.items < self.capacity <= items and not self._growth_logged:
            self._growth_logged = True
            logger.warning(
                "Bloom filter is full at %s pages and is growing. It keeps its error rate of %g,"
                " but takes more memory per page and gets a little slower. Next time, set capacity"
                " (BLOOM_CAPACITY) to the expected number of pages.",
                f"{items:,}",
                self.error_rate,
            )
        self._begin(self._newest.since)
        return self._newest

    def _look_at_clock(self) -> None:
        if self.window is not None:
            self._rotate(self.clock())

    def _rotate(self, now: float) -> None:
        """Drop expired generations, and begin a new one if it is time."""
        window = self.window
        if window is None or self._since <= now < self._due:
            return
        now, length = float(now), window / PARTS
        life = window + length  # of its first item; its last one lives for the window
        self._redate(now)
        self.slices = live = [slice_ for slice_ in self.slices if slice_.since + life > now]
        for dates, stay in (self.again, life), (self.ages, window):
            over = [mark for mark, date in dates.items() if date + stay <= now]
            for mark in over:
                del dates[mark]
            if self.changes is not None:
                self.changes.over += over
        if not live or now >= live[-1].since + length:
            if live and not live[-1].items:  # nothing was added since it began
                live.pop()
            self._begin(now)
        self._use_newest()
        self._since = self._newest.since
        self._due = min(self._since + length, live[0].since + life)

    def _redate(self, now: float) -> None:
        """Set dates in the future to now: the clock may have gone back."""
        for slice_ in self.slices:
            slice_.since = min(slice_.since, now)
        for fingerprint, since in self.again.items():
            if since > now:
                self._set_date(self.again, fingerprint, now)

    def _set_date(self, dates: dict[bytes, float], fingerprint: bytes, date: float | None) -> None:
        """Set a date in `again` or `ages`; None removes it."""
        if date is None:
            del dates[fingerprint]
        else:
            dates[fingerprint] = float(date)
        if self.changes is not None:
            changed = self.changes.again if dates is self.again else self.changes.ages
            changed.add(fingerprint)
