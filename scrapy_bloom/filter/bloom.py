"""The filter in this process's own memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from scrapy_bloom import file
from scrapy_bloom.errors import SettingError
from scrapy_bloom.filter.dated import DatedSlices
from scrapy_bloom.filter.hashing import new_secret
from scrapy_bloom.filter.info import FilterInfo, filter_info
from scrapy_bloom.filter.sizing import BLOCK_BYTES
from scrapy_bloom.filter.slices import EMPTY, Slice
from scrapy_bloom.filter.stored import read_filter, tables_of
from scrapy_bloom.values import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    Span,
    read_age,
    read_capacity,
    read_error_rate,
    read_window,
    write_span,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class LocalFilter(DatedSlices):
    """A Bloom filter in memory that grows without limit and keeps its error rate.

    >>> seen = LocalFilter(capacity=1000, error_rate=1e-6)
    >>> seen.add(b"one"), seen.add(b"one"), b"two" in seen
    (False, True, False)

    A fingerprint is any bytes-like object. An add or a check takes time proportional to the number
    of slices, which grows with the logarithm of items / capacity. Only one thread may use a filter
    at a time. A filter cannot be copied or pickled: save it to a file, and load that.

    With a window, an item is kept for at least that long and at most an eighth longer, counted from
    when it was added; being seen again does not extend that. If the clock goes back, dates in the
    future count as now.

    :param capacity: items expected, in a whole window if there is one: 1 to 10,000,000,000, also
        as ``"10M"``. Beyond it the filter grows.
    :param error_rate: bound for the share of new items that are called seen, in total, from 1e-15
        to below 1.
    :param window: how long items are kept, from 1 second to a hundred years: seconds, a
        `timedelta`, or text such as ``"30d"``; None to keep them forever.
    :param digests: whether fingerprints of 20 bytes are SHA-1 digests, as Scrapy's are. Pass False
        if others can choose their bytes: all then go through a slower hash.
    :param clock: returns the time in seconds since 1970.
    :raises SettingError: if `capacity`, `error_rate` or `window` is outside its range.

    Attributes:
        capacity: as given.
        error_rate: as given.
        window: in seconds.
        digests: as given.
        clock: as given.
    """

    def __init__(
        self,
        capacity: float | str = DEFAULT_CAPACITY,
        error_rate: float | str = DEFAULT_ERROR_RATE,
        *,
        window: Span | None = None,
        digests: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.capacity = read_capacity("capacity", capacity)
        self.error_rate = read_error_rate("error_rate", error_rate)
        self.window = read_window("window", window)
        self.digests, self.clock = digests, clock
        self.again, self.ages, self.changes = {}, {}, None
        self.adopt(new_secret(), [], 1)

    def __len__(self) -> int:
        """Return how many fingerprints were added, but for those that were called seen."""
        return self.items

    def __repr__(self) -> str:
        window = "" if self.window is None else f", window={write_span(self.window)!r}"
        counts = f"{len(self):,} of {self.capacity:,}"
        return f"<LocalFilter: {counts} fingerprints, error_rate={self.error_rate:g}{window}>"

    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before."""
        if fingerprint.__class__ is not bytes:
            fingerprint = _as_bytes(fingerprint)
        if self.window is not None and not self._since <= (now := self.clock()) < self._due:
            self._rotate(now)
        positions = self._probe(fingerprint)
        h = positions.pop()
        blocks = self._blocks
        index = h * len(blocks) >> 32
        block = blocks[index]
        if block[positions].all():
            return not self.again or self._stays_seen(fingerprint)
        first, last = positions[0], positions[-1]
        for older in self._older:
            held = older[h * len(older) >> 32]
            # For most new items one of these is unset: testing two bits is cheaper than all.
            if held[first] and held[last] and held[positions].all():
                return not self.again or self._stays_seen(fingerprint)
        newest = self._newest
        if newest.items >= self._limit:
            newest = self._grow()
            index = h * len(newest.blocks) >> 32
            block = newest.blocks[index]
        if block is EMPTY:
            block = newest.writable(index)
        block[positions] = 1
        newest.items += 1
        self._dirty[index] = 1
        if self.again and fingerprint in self.again:  # it outlived its slice
            self._set_date(self.again, fingerprint, None)
        if self.changes is not None:
            self.changes.mark(newest.id, fingerprint)
        return False

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; return for each, in order, whether it was there before."""
        return [self.add(fingerprint) for fingerprint in fingerprints]

    def add_aged(self, fingerprint: bytes, max_age: Span) -> bool:
        """Return whether this method let a fingerprint through less than `max_age` ago.

        If not, add it and remember the time, at about 130 bytes per fingerprint. One that was added
        only by other methods is let through, since its time is unknown.

        :param max_age: seconds, a `timedelta`, or text such as ``"12h"``.
        """
        fingerprint, max_age = _as_bytes(fingerprint), read_age("max_age", max_age)
        now = self.clock()
        last = self.ages.get(fingerprint)
        if last is not None and last > now:  # the clock went back: it counts as now
            last = now
            self._set_date(self.ages, fingerprint, now)
        if last is not None and now - last < max_age and fingerprint not in self.again:
            return True
        self._set_date(self.ages, fingerprint, now)
        if self.add(fingerprint) and self.window is not None:  # its time starts over
            self.add_to_newest(fingerprint)
        return False

    def add_to_newest(self, fingerprint: bytes) -> None:
        """Add a fingerprint to the newest generation, even if older ones have it."""
        fingerprint = _as_bytes(fingerprint)
        probe, newest = self._probe(fingerprint), self._newest
        generation = (slice_ for slice_ in self.slices if slice_.since == newest.since)
        holder = next((slice_ for slice_ in generation if slice_.has(probe)), None)
        if holder is None:
            holder = self._grow() if newest.items >= newest.spec.capacity else newest
            holder.put(probe)
            holder.items += 1  # uncounted, repeats would break the error rate
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
        """Make a fingerprint new again; return whether it was there.

        Its bits may be those of others too, so they stay. It is kept in an exact list until it is
        added again, at some 100 to 130 bytes.
        """
        return self.forget_many([fingerprint])[0]

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make a batch new again; return for each, in order, whether it was there before.

        Of two equal fingerprints in one batch, the second is no longer there.
        """
        self._look_at_clock()
        return [self._forget(_as_bytes(each)) for each in fingerprints]

    @property
    def items(self) -> int:
        """How many fingerprints it has, without those that were forgotten."""
        return max(0, sum(slice_.items for slice_ in self.slices) - len(self.again))

    def info(self) -> FilterInfo:
        """Return the state of the filter now."""
        self._look_at_clock()
        return filter_info(
            [(slice_.spec, slice_.items) for slice_ in self.slices],
            capacity=self.capacity,
            error_rate=self.error_rate,
            memory=sum(slice_.used for slice_ in self.slices) * BLOCK_BYTES,
            forgotten=len(self.again),
            window=self.window,
            dates=[slice_.since for slice_ in self.slices],
        )

    def update(self, other: LocalFilter) -> None:
        """Add every item of another filter that was loaded from the same file and has grown since.

        Two Bloom filters with the same hash and size are merged by a bitwise *or*.

        :raises SettingError: if they are not copies of one filter, or a slice would hold more than
            it was sized for; then nothing has changed.
        """
        self._look_at_clock()
        other._look_at_clock()
        if (self.secret, self.window) != (other.secret, other.window):
            raise _not_united("their secret or window differs")
        united, next_id = [], self.next_id
        for mine, theirs in zip_longest(self.slices, other.slices):
            own = mine or Slice(next_id, theirs.since, theirs.spec)
            added = theirs or Slice(0, own.since, own.spec)
            if (own.since, own.spec) != (added.since, added.spec):
                raise _not_united("they have slices of different size or age")
            united.append(own.united(added))
            if united[-1].items > 1.01 * own.spec.capacity:  # an estimate
                raise _not_united(f"a slice for {own.spec.capacity:,} items would hold more")
            next_id += mine is None
        again = {**other.again, **self.again}
        self.again = {
            mark: since for mark, since in again.items() if mark not in self and mark not in other
        }
        for fingerprint, last in other.ages.items():
            self.ages[fingerprint] = max(last, self.ages.get(fingerprint, last))
        self.adopt(self.secret, united, next_id)

    def clear(self) -> bool:
        """Remove everything. Returns True."""
        if self.changes is not None:
            if self.changes.marks:
                self.changes.marks.clear()
            self.changes.again |= self.again.keys()
            self.changes.ages |= self.ages.keys()
        self.again.clear()
        self.ages.clear()
        self.adopt(self.secret, [], self.next_id)
        return True

    def save(self, path: str | Path) -> None:
        """Write the filter to a file, atomically; what was there is replaced.

        :raises StateError: if it cannot be written.
        """
        file.write(file.followed(Path(path)), tables_of(self), next_slice=self.next_id)

    @classmethod
    def load(cls, path: str | Path, *, clock: Callable[[], float] = time.time) -> Self:
        """Return the filter that :meth:`save` wrote to a file, or that of a job's file.

        :raises StateError: if the file is not ours, of another format, or damaged.
        """
        with file.reading(file.followed(Path(path))) as database:
            meta = dict(file.rows(database, "meta"))
            self = cls(meta["capacity"], meta["error_rate"], clock=clock)
            read_filter(self, database, meta)
        return self

    def close(self) -> None:
        """Do nothing: this filter holds nothing but memory."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:  # two filters on the same bits would break the error rate
        raise TypeError("a filter cannot be copied or pickled: save it to a file, and load that")

    def _find(self, fingerprint: bytes) -> Slice | None:
        """Return the newest slice that has a fingerprint; None if that was forgotten."""
        if fingerprint in self.again:
            return None
        probe = self._probe(fingerprint)
        return next((slice_ for slice_ in reversed(self.slices) if slice_.has(probe)), None)

    def _forget(self, fingerprint: bytes) -> bool:
        if fingerprint in self.ages:
            self._set_date(self.ages, fingerprint, None)
        slice_ = self._find(fingerprint)
        if slice_ is None:
            return False
        self._set_date(self.again, fingerprint, slice_.since)
        return True

    def _stays_seen(self, fingerprint: bytes) -> bool:
        """Return True for what is seen, and False once for what was forgotten."""
        if fingerprint not in self.again:
            return True
        self._set_date(self.again, fingerprint, None)
        if self.window is not None:  # its time starts over
            self.add_to_newest(fingerprint)
        return False


def _as_bytes(fingerprint: bytes) -> bytes:
    """Return a fingerprint as `bytes`.

    :raises TypeError: if it is not bytes-like.
    """
    if fingerprint.__class__ is bytes:
        return fingerprint
    try:
        return bytes(memoryview(fingerprint))
    except TypeError:
        kind = type(fingerprint).__name__
        raise TypeError(f"a fingerprint must be bytes, or bytes-like, not {kind}") from None


def _not_united(why: str) -> SettingError:
    return SettingError(
        f"update: the filters cannot be united because {why}. Both must be copies of one filter."
        " Add the fingerprints themselves with add_many."
    )
