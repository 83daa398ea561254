"""The filter in this process's own memory."""

from __future__ import annotations

import copy
import logging
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_bloom.errors import SettingError
from scrapy_bloom.filter import file, sizing
from scrapy_bloom.filter.growth import (
    MOST_GENERATIONS,
    SliceSpec,
    filter_hashes,
    first_slice,
    generation_capacity,
    generation_length,
    generation_life,
    generation_rate,
    next_slice,
)
from scrapy_bloom.filter.hashing import make_probe, new_secret
from scrapy_bloom.filter.info import FilterInfo, count_bits, filter_info
from scrapy_bloom.filter.state import EMPTY, Changes, FilterState, Slice
from scrapy_bloom.options import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    read_capacity,
    read_error_rate,
    read_window,
)

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class LocalFilter:
    """A Bloom filter in memory that grows without limit and keeps its error rate.

    >>> seen = LocalFilter(capacity=1000, error_rate=1e-6)
    >>> seen.add(b"one"), seen.add(b"one"), b"two" in seen
    (False, True, False)

    A fingerprint is any bytes-like object. An add or a check takes time proportional to the number
    of slices, which grows with the logarithm of items / capacity. Only one thread may use a filter
    at a time. A copy, or what comes out of a pickle, is a filter of its own with the same marks and
    the same secret.

    With a window an item is kept for so long, and at most an eighth longer, counted from when it
    was added; what is seen again is not kept longer by that. If the clock goes back, what seems to
    come from the future counts as of now.

    :param capacity: items expected, in a whole window if there is one: 1 to 10,000,000,000. Beyond
        it the filter grows.
    :param error_rate: bound for the share of new items that are called seen, in total, from 1e-15
        to below 1.
    :param window: seconds that items are kept, from 1 to 3,153,600,000, a hundred years; None for
        ever.
    :param digests: whether fingerprints of 20 bytes are SHA-1 digests, as Scrapy's are. Pass False
        if somebody else can choose their bytes: then all go through a slower hash.
    :param clock: tells the time in seconds since 1970.
    :raises SettingError: if `capacity`, `error_rate` or `window` is outside its range.

    Attributes:
        capacity: as given.
        error_rate: as given.
        clock: as given.
        state: what the filter consists of, to be stored or read; only the filter may change it.
        changes: what has changed since somebody last put new :class:`Changes` here; None, the
            default, if nobody wants to know.
    """

    def __init__(
        self,
        capacity: int = DEFAULT_CAPACITY,
        error_rate: float = DEFAULT_ERROR_RATE,
        *,
        window: float | None = None,
        digests: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.capacity = read_capacity("capacity", capacity)
        self.error_rate = read_error_rate("error_rate", error_rate)
        window = read_window("window", window)
        rate = self.error_rate if window is None else self.error_rate / MOST_GENERATIONS
        self.clock = clock
        self.changes: Changes | None = None
        self._load(FilterState(new_secret(), filter_hashes(rate), digests, window))

    @classmethod
    def from_state(
        cls,
        state: FilterState,
        capacity: int = DEFAULT_CAPACITY,
        error_rate: float = DEFAULT_ERROR_RATE,
        *,
        clock: Callable[[], float] = time.time,
        changes: Changes | None = None,
    ) -> Self:
        """Return the filter that `state` describes. It works on `state` itself, not on a copy.

        :param capacity: shapes the slices to come, as `error_rate` does.
        :param changes: where to note what changes from now on, and what the clock has changed.
        :raises SettingError: if `capacity` or `error_rate` is outside its range.
        """
        self = cls(capacity, error_rate, clock=clock)
        self.changes = changes
        self._load(state)
        return self

    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before."""
        if fingerprint.__class__ is not bytes:
            fingerprint = _as_bytes(fingerprint)
        if self._windowed and not self._since <= (now := self.clock()) < self._due:
            self._turn(now)
        positions = self._probe(fingerprint)
        h = positions.pop()
        blocks = self._blocks
        index = h * len(blocks) >> 32
        block = blocks[index]
        if block[positions].all():
            return not self._again or self._stays_seen(fingerprint)
        first, last = positions[0], positions[-1]
        for older in self._older:
            there = older[h * len(older) >> 32]
            # Of most new items one of these is unset: asking for two bits is cheaper than for all.
            if there[first] and there[last] and there[positions].all():
                return not self._again or self._stays_seen(fingerprint)
        newest = self._newest
        if newest.items >= self._limit:
            newest = self._grow()
            index = h * len(newest.blocks) >> 32
            block = newest.blocks[index]
        if block is EMPTY:
            block = newest.writable(index)
        block[positions] = 1
        newest.items += 1
        self._dirty(index)
        if self._again and fingerprint in self._again:  # longer than a slice had it
            self._set_again(fingerprint, None)
        if self.changes is not None:
            self.changes.mark(newest.id, fingerprint)
        return False

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; return for each, in order, whether it was there before."""
        return [self.add(fingerprint) for fingerprint in fingerprints]

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether this method let a fingerprint through less than `max_age` seconds ago.

        If not, add it, and remember the time: about 130 bytes for each fingerprint. What came by
        other methods only is let through, since nobody knows when that was.
        """
        fingerprint = _as_bytes(fingerprint)
        ages, now = self.state.ages, self.clock()
        last = ages.get(fingerprint)
        if last is not None and last > now:  # the clock went back: it counts as of now
            last = now
            self._set_age(fingerprint, now)
        if last is not None and now - last < max_age and fingerprint not in self._again:
            return True
        self._set_age(fingerprint, now)
        if self.add(fingerprint) and self._windowed:  # its time counts anew
            self.put(fingerprint)
        return False

    def put(self, fingerprint: bytes) -> None:
        """Have the newest generation hold a fingerprint that older ones may hold as well."""
        fingerprint = _as_bytes(fingerprint)
        probe, newest = self._probe(fingerprint), self._newest
        own = (one for one in self.state.slices if one.since == newest.since)
        holder = next((one for one in own if one.has(probe)), None)
        if holder is None:
            holder = self._grow() if newest.items >= newest.spec.capacity else newest
            holder.put(probe)
            holder.items += 1  # uncounted, what is let through again would break the error rate
        if self.changes is not None:
            self.changes.mark(holder.id, fingerprint)

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether the fingerprint was added. Changes nothing."""
        return self.contains_many([fingerprint])[0]

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added. Changes nothing."""
        self._look_at_clock()
        return [self._find(_as_bytes(each)) is not None for each in fingerprints]

    def forget(self, fingerprint: bytes) -> bool:
        """Let one fingerprint through again; return whether it was there.

        Its bits are also those of others, and stay. So it is kept in an exact list until it is
        added again: about 90 bytes each.
        """
        return self.forget_many([fingerprint])[0]

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Let a batch through again; return for each, in order, whether it was there before.

        The second of two equal fingerprints in one batch was not there any more.
        """
        self._look_at_clock()
        return [self._forget(_as_bytes(each)) for each in fingerprints]

    @property
    def items(self) -> int:
        """How many fingerprints it has, without those that were forgotten."""
        return max(0, sum(slice_.items for slice_ in self.state.slices) - len(self._again))

    @property
    def secret(self) -> bytes:
        """The key of this filter's hash, 16 bytes. Who knows it can make any page look seen."""
        return self.state.secret

    @property
    def window(self) -> float | None:
        """Seconds that items are kept, at least; None for ever."""
        return self.state.window

    @property
    def newest(self) -> int:
        """The number of the slice that takes items now."""
        return self._newest.id

    def info(self) -> FilterInfo:
        """Return the state of the filter now. Counts every bit: about 1 ms for each 4 MB."""
        self._look_at_clock()
        slices, hashes = self.state.slices, self.state.hashes
        info = filter_info(
            [[count_bits(one.spec, one.items, _fills(one), hashes) for one in slices]],
            error_rate=self.error_rate,
            memory=sum(map(_memory, slices)),
        )
        info = replace(info, items=self.items)
        if len(slices) == 1 and slices[0].spec.capacity < self.capacity:  # see first_slice
            rest = self._next_spec(slices[0].since)
            info = replace(
                info,
                capacity=info.capacity + rest.capacity,
                bytes_at_capacity=info.bytes_at_capacity + rest.blocks * sizing.BLOCK_BYTES,
            )
        if self.window is not None:
            info = info.dated(self.window, (slice_.since for slice_ in slices))
        return info

    def update(self, other: LocalFilter) -> None:
        """Add every fingerprint that another filter has. It must be a copy of this one, grown on.

        Two Bloom filters with the same hash and the same slices are united by a bitwise *or*.

        :raises SettingError: if the filters are not copies of one, or one slice would hold more
            than it is sized for; then nothing has changed.
        """
        self._look_at_clock()
        other._look_at_clock()
        mine, theirs = self.state, other.state
        slices, next_id = _united(mine, theirs), mine.next_id
        for slice_ in slices[len(mine.slices) :]:
            slice_.id, next_id = next_id, next_id + 1
        again, ages = {**theirs.again, **mine.again}, {**theirs.ages, **mine.ages}
        for fingerprint in theirs.ages.keys() & mine.ages.keys():
            ages[fingerprint] = max(theirs.ages[fingerprint], mine.ages[fingerprint])
        if self.changes is not None:
            self.changes.again |= again.keys()
            self.changes.ages |= ages.keys()
        again = {one: since for one, since in again.items() if one not in self and one not in other}
        self._load(replace(mine, slices=slices, next_id=next_id, again=again, ages=ages))

    def clear(self) -> bool:
        """Forget everything; the filter is as it was when it was new. Returns True."""
        old = self.state
        if self.changes is not None:
            if self.changes.marks:
                self.changes.marks.clear()
            self.changes.again |= old.again.keys()
            self.changes.ages |= old.ages.keys()
        state = FilterState(old.secret, old.hashes, old.digests, old.window, next_id=old.next_id)
        self._load(state)
        return True

    def save(self, path: str | Path) -> None:
        """Write the filter to a file, whole or not at all; what was there is replaced.

        :raises StateError: if it cannot be written.
        """
        sizes: dict[str, file.Value] = {"capacity": self.capacity, "error_rate": self.error_rate}
        file.save(Path(path), self.state, {"kind": "filter", **sizes})

    @classmethod
    def load(cls, path: str | Path, *, clock: Callable[[], float] = time.time) -> Self:
        """Return the filter that :meth:`save` wrote to a file, or that of a job's file.

        :raises StateError: if the file is not ours, newer, or damaged.
        """
        with file.reading(Path(path)) as database:
            meta = dict(file.rows(database, "meta"))
            state = file.read_filter(database, meta)
            self = cls.from_state(state, meta["capacity"], meta["error_rate"], clock=clock)
            for id_, fingerprints in file.journal(database):
                self.replay(id_, fingerprints)
        return self

    def close(self) -> None:
        """Do nothing: memory is all that this filter holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def replay(self, id_: int, fingerprints: Iterable[bytes]) -> None:
        """Set bits that were counted when they were first set; of a slice that is over, none."""
        for slice_ in self.state.slices:
            if slice_.id == id_:
                for fingerprint in fingerprints:
                    slice_.put(self._probe(fingerprint))

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # two filters on the same bits would not count each other's

    def __getstate__(self) -> tuple[Any, ...]:
        return self.capacity, self.error_rate, self.clock, self.state

    def __setstate__(self, parts: tuple[Any, ...]) -> None:
        self.capacity, self.error_rate, self.clock, state = parts
        self.changes = None
        self._load(state)

    def _load(self, state: FilterState) -> None:
        """Become the filter that `state` describes; one without slices gets its first."""
        self.state, self._windowed = state, state.window is not None
        self._again = state.again
        self._told = False
        self._probe = make_probe(state.secret, state.hashes, digests=state.digests)
        self._since, self._due = inf, -inf  # the next look at the clock sets them
        if self._windowed:
            self._turn(self.clock())
        elif state.slices:
            self._follow()
        else:
            self._begin(0.0)

    def _begin(self, since: float) -> None:
        """Add to a new slice from now on."""
        self.state.new_slice(since, self._next_spec(since))
        self._follow()

    def _follow(self) -> None:
        """Add to the youngest slice from now on, and look into the others as well."""
        *older, newest = self.state.slices
        # The youngest first: each slice holds more items than all older ones.
        self._older = tuple(slice_.blocks for slice_ in reversed(older))
        self._newest, self._blocks, self._dirty = newest, newest.blocks, newest.dirty.add
        self._limit = newest.spec.capacity

    def _next_spec(self, since: float) -> SliceSpec:
        state = self.state
        if not state.slices:
            rate = generation_rate([], self.error_rate) if state.window else self.error_rate
            return first_slice(self.capacity, rate, state.hashes)
        own = [slice_.spec for slice_ in state.slices if slice_.since == since]
        if state.window is None:
            return next_slice(own, self.capacity, self.error_rate, state.hashes)
        others = [slice_ for slice_ in state.slices if slice_.since != since]
        capacity = generation_capacity(sum(each.items for each in others), self.capacity)
        rate = generation_rate([each.spec for each in others], self.error_rate)
        return next_slice(own, capacity, rate, state.hashes)

    def _grow(self) -> Slice:
        items = sum(slice_.items for slice_ in self.state.slices)
        if items - self._newest.items < self.capacity <= items and not self._told:
            self._told = True
            logger.warning(
                "Bloom filter: it holds %s fingerprints, as many as it was sized for. It grows from"
                " here and keeps its error rate of %g, but takes more memory per fingerprint and"
                " gets a little slower. Next time, set capacity (BLOOM_CAPACITY) to the number that"
                " you expect.",
                f"{items:,}",
                self.error_rate,
            )
        self._begin(self._newest.since)
        return self._newest

    def _look_at_clock(self) -> None:
        if self._windowed:
            self._turn(self.clock())

    def _turn(self, now: float) -> None:
        """Drop the generations that are over, and begin one if it is time."""
        window, state = self.state.window, self.state
        if window is None or self._since <= now < self._due:
            return
        length, life = generation_length(window), generation_life(window)
        self._redate(now)
        live = [one for one in state.slices if one.since + life > now]
        state.slices = live
        for fingerprint in [one for one, since in state.again.items() if since + life <= now]:
            self._set_again(fingerprint, None)
        for fingerprint in [one for one, last in state.ages.items() if last + window <= now]:
            self._set_age(fingerprint, None)
        youngest = [one for one in live if one.since == live[-1].since]
        if not live or now >= live[-1].since + length:
            if any(one.items for one in youngest) or not live:
                state.new_slice(now, self._next_spec(now))
            else:  # nothing has come since it began
                for slice_ in youngest:
                    slice_.since = now
        self._follow()
        self._since = self._newest.since
        self._due = min(self._since + length, state.slices[0].since + life)

    def _redate(self, now: float) -> None:
        """Have nothing be of the future: the clock may have gone back."""
        for slice_ in self.state.slices:
            slice_.since = min(slice_.since, now)
        for fingerprint, since in self._again.items():
            if since > now:
                self._set_again(fingerprint, now)

    def _find(self, fingerprint: bytes) -> Slice | None:
        """Return the youngest slice that has a fingerprint, unless that was forgotten."""
        if fingerprint in self._again:
            return None
        probe = self._probe(fingerprint)
        return next((one for one in reversed(self.state.slices) if one.has(probe)), None)

    def _forget(self, fingerprint: bytes) -> bool:
        if fingerprint in self.state.ages:
            self._set_age(fingerprint, None)
        found = self._find(fingerprint)
        if found is None:
            return False
        self._set_again(fingerprint, found.since)
        return True

    def _stays_seen(self, fingerprint: bytes) -> bool:
        """Return True for what is seen, and False once for what is to be let through again."""
        if fingerprint not in self._again:
            return True
        self._set_again(fingerprint, None)
        if self._windowed:  # its time counts anew
            self.put(fingerprint)
        return False

    def _set_again(self, fingerprint: bytes, since: float | None) -> None:
        if since is None:
            del self._again[fingerprint]
        else:
            self._again[fingerprint] = since
        if self.changes is not None:
            self.changes.again.add(fingerprint)

    def _set_age(self, fingerprint: bytes, last: float | None) -> None:
        if last is None:
            del self.state.ages[fingerprint]
        else:
            self.state.ages[fingerprint] = last
        if self.changes is not None:
            self.changes.ages.add(fingerprint)


def _as_bytes(fingerprint: bytes) -> bytes:
    """Return a fingerprint as `bytes`.

    :raises TypeError: if it is not bytes-like.
    """
    return fingerprint if fingerprint.__class__ is bytes else bytes(memoryview(fingerprint))


def _fills(slice_: Slice) -> list[float]:
    """Return the share of bits set in each block."""
    return [0.0 if block is EMPTY else block.count() / sizing.BLOCK_BITS for block in slice_.blocks]


def _memory(slice_: Slice) -> int:
    """Return the bytes of memory that the blocks take."""
    return sys.getsizeof(slice_.blocks) + sum(map(sys.getsizeof, slice_.touched().values()))


def _united(mine: FilterState, theirs: FilterState) -> list[Slice]:
    """Return the slices of two filters that were one, with the bits of both in bits of their own.

    :raises SettingError: if they were not, or a slice would hold too much.
    """
    for what in ("secret", "hashes", "digests", "window"):
        if getattr(mine, what) != getattr(theirs, what):
            raise _refused(f"their {what} differs")
    longer, shorter = sorted((mine.slices, theirs.slices), key=len, reverse=True)
    united = [one.copy() for one in longer]
    for one, other in zip(united, shorter, strict=False):
        if (one.since, one.spec) != (other.since, other.spec):
            raise _refused("they have slices of different size or age")
        _unite(one, other, mine.hashes)
    return united


def _unite(into: Slice, other: Slice, hashes: int) -> None:
    """Set in a slice the bits of another one, and estimate how many items it has then."""
    before, others = _ones(into), _ones(other)
    for index, block in other.touched().items():
        bits = into.writable(index)
        bits |= block
    ones, items = _ones(into), into.items
    if ones == others:
        items = other.items
    elif ones != before:
        estimate = round(sizing.estimated_items(ones, into.spec.blocks, hashes))
        items = min(max(estimate, items, other.items), items + other.items)
    if items > 1.01 * into.spec.capacity:  # an estimate
        raise _refused(f"a slice for {into.spec.capacity:,} items would hold about {items:,}")
    into.items = min(items, into.spec.capacity)


def _ones(slice_: Slice) -> int:
    return sum(block.count() for block in slice_.touched().values())


def _refused(why: str) -> SettingError:
    return SettingError(
        f"update: the filters cannot be united because {why}, expected two copies of one filter."
        f" Add the fingerprints themselves with add_many."
    )
