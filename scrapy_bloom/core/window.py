"""A local filter that forgets: items are kept in generations, and the oldest is dropped whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from scrapy_bloom.core.growth import (
    MOST_GENERATIONS,
    SliceSpec,
    filter_hashes,
    generation_capacity,
    generation_length,
    generation_life,
    generation_rate,
    next_slice,
)
from scrapy_bloom.core.hashing import new_secret
from scrapy_bloom.core.info import FilterInfo
from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.core.state import FilterState, Slice
from scrapy_bloom.errors import SettingError
from scrapy_bloom.options import DEFAULT_CAPACITY, DEFAULT_ERROR_RATE, read_window

if TYPE_CHECKING:
    from typing_extensions import Self


_APART: Final = 1e-3
"""Seconds between the dates of two generations, if the clock went back."""


@dataclass(frozen=True)
class Generation:
    """Items that were added in one part of the window, and take no more.

    Attributes:
        since: when it began, in seconds since 1970.
        slices: what it consists of, oldest first.
    """

    since: float
    slices: Sequence[Slice]

    @property
    def items(self) -> int:
        """How many items it has."""
        return sum(slice_.items for slice_ in self.slices)

    @property
    def specs(self) -> list[SliceSpec]:
        """The geometry of its slices."""
        return [slice_.spec for slice_ in self.slices]


class WindowedFilter(LocalFilter):
    """A local filter that keeps an item for a window, and at most an eighth longer.

    The time counts from when an item was added; what is seen again is not kept longer by that.

    >>> seen = WindowedFilter(3600)
    >>> seen.add(b"one"), seen.add(b"one")
    (False, True)

    An item goes to the newest generation. That is followed by another one when it is an eighth of
    the window old, and dropped at 9/8 of the window. So there are at most nine. They share one
    secret and one k, so that one probe serves all, and the error rate in equal parts.

    The clock may be set. If it goes back, what seems to come from the future counts as of now, and
    the generations stay apart, in their order.

    :param window: seconds that items are kept, from 1 to 3,153,600,000, a hundred years.
    :param capacity: items in a whole window. The first generation has room for so many, a further
        one for an eighth of them or, if that is more, for what came on average.
    :param error_rate: as for :class:`LocalFilter`, for all generations together.
    :param digests: as for :class:`LocalFilter`, like what follows.
    :raises SettingError: if `window`, `capacity` or `error_rate` is outside its range.
    """

    __slots__ = ("_closed", "_due", "_since", "_stored", "_told", "_window")

    def __init__(
        self,
        window: float,
        capacity: int = DEFAULT_CAPACITY,
        error_rate: float = DEFAULT_ERROR_RATE,
        *,
        digests: bool = True,
        on_growth: Callable[[int], object] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        seconds = read_window("window", window)
        if seconds is None:
            raise SettingError("window = None: without a window take a LocalFilter.")
        self._window = seconds
        super().__init__(capacity, error_rate, digests=digests, on_growth=on_growth, clock=clock)

    @classmethod
    def windowed_from_state(
        cls,
        state: FilterState,
        capacity: int = DEFAULT_CAPACITY,
        error_rate: float = DEFAULT_ERROR_RATE,
        *,
        on_growth: Callable[[int], object] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Return the filter that `state` describes, as :meth:`from_state` does, with its window."""
        assert state.window is not None  # noqa: S101 - else it is a LocalFilter
        self = cls(
            state.window,
            capacity,
            error_rate,
            digests=state.digests,
            on_growth=on_growth,
            clock=clock,
        )
        self._load(state)
        return self

    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before."""
        now = self._clock()
        if now >= self._due or now < self._since:
            self._turn(now)
        seen = LocalFilter.add(self, fingerprint)
        if not seen and self.forgotten:  # it may be in that list though its bits are gone
            self.forgotten.discard(fingerprint)
        return seen

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added, and is not forgotten."""
        self._turn(self._clock())
        return LocalFilter.contains_many(self, fingerprints)

    @property
    def since(self) -> float:
        """When the newest generation began."""
        return self._since

    @property
    def window(self) -> float:
        """Seconds that items are kept, at least."""
        return self._window

    def renew(self, fingerprint: bytes) -> None:
        """Have a fingerprint, let through just now, be kept for as long as any other one."""
        self._turn(self._clock())
        self._put([fingerprint])

    def until_now(self) -> float:
        """Return when the newest generation began that has items; 0 if there are no items."""
        if not self._empty:
            return self._since
        return self._closed[-1].since if self._closed else 0.0

    def begin_after(self, until: float) -> None:
        """Take note of what is old; the next generation begins when it is due.

        If the dates have changed since the filter was stored, because the clock went back, the
        number may be that of then.
        """
        if until in {self._since, *(generation.since for generation in self._closed)}:
            self.old = until
        else:
            dates = [now for then, now in self._stored if then <= until]
            self.old = max(dates, default=0.0)

    @property
    def old_as_stored(self) -> float:
        """What :attr:`old` was when the filter was stored, for notes that are kept beside that."""
        return next((then for then, now in self._stored if now == self.old), self.old)

    @property
    def is_set_back(self) -> bool:
        """Whether dates have changed since it was stored, because the clock went back."""
        return any(then != now for then, now in self._stored)

    def restore(self, fingerprints: Iterable[bytes], since: float | None = None) -> bool:
        """Add what an earlier run has added to a generation of this date; False if that is over."""
        now = self._clock()
        self._turn(now)
        since = now if since is None else min(since, now)
        if since + generation_life(self._window) <= now:
            return False
        if self._empty and not (self._closed and since <= self._closed[-1].since):
            self._since = since
        elif since > self._since and len(self._closed) + 2 <= MOST_GENERATIONS:
            self._begin(since)
        for number, generation in enumerate(self._closed):
            if since <= generation.since:
                self._closed[number] = self._with(generation, fingerprints)
                break
        else:
            self._put(fingerprints)
            self._since = max(self._since, since)
        self._look_everywhere()
        self._set_due()
        return True

    def info(self) -> FilterInfo:
        """Return the state of the filter now. Counts every bit: about 1 ms for each 4 MB."""
        self._turn(self._clock())
        dates = [*(generation.since for generation in self._closed), self._since]
        return LocalFilter.info(self).dated(self._window, dates)

    def state(self) -> FilterState:
        """Return what the filter consists of, to be stored. The bits are shared, not copied."""
        slices = [
            replace(slice_, since=generation.since)
            for generation in self._generations()
            for slice_ in generation.slices
        ]
        state = LocalFilter.state(self)
        return replace(state, slices=slices, window=self._window, error_rate=self._error_rate)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._window, *LocalFilter.__getstate__(self)

    def __setstate__(self, parts: tuple[Any, ...]) -> None:
        self._window, *rest = parts
        LocalFilter.__setstate__(self, tuple(rest))

    @property
    def _empty(self) -> bool:
        return not self._full and self._room == self._spec.capacity

    def _is_not_readmitted(self, fingerprint: bytes) -> bool:
        if LocalFilter._is_not_readmitted(self, fingerprint):  # noqa: SLF001 - its own base
            return True
        self._put([fingerprint])  # its time counts anew
        return False

    def _new_state(self, *, digests: bool) -> FilterState:
        hashes = filter_hashes(self._error_rate / MOST_GENERATIONS)
        return FilterState(new_secret(), hashes, digests, [])

    def _load(self, state: FilterState) -> None:
        now = self._clock()
        by_date: dict[float, list[Slice]] = {}
        for slice_ in state.slices:
            date = now if slice_.since is None else slice_.since
            by_date.setdefault(date, []).append(slice_)
        generations = [Generation(date, slices) for date, slices in by_date.items()]
        self._stored = [(date, date) for date in by_date]
        newest = generations.pop() if generations else Generation(now, [])
        self._closed, self._since = generations, newest.since
        self._told = False
        LocalFilter._load(self, replace(state, slices=newest.slices))  # noqa: SLF001 - its own base
        self._set_due()
        self._turn(now)

    def _fill(self, newest: Slice, full: list[Slice]) -> None:
        LocalFilter._fill(self, newest, full)  # noqa: SLF001 - its own base
        self._look_everywhere()

    def _look_everywhere(self) -> None:
        """Look into all slices but the newest, the younger ones first."""
        old = [slice_ for generation in self._closed for slice_ in generation.slices]
        self._older = tuple(slice_.blocks for slice_ in reversed([*old, *self._full]))

    def _slices_until(self, until: float) -> Sequence[Slice]:
        return [
            slice_ for part in self._generations() if part.since <= until for slice_ in part.slices
        ]

    def _generations(self) -> list[Generation]:
        return [*self._closed, Generation(self._since, self._chain())]

    def _put(self, fingerprints: Iterable[bytes]) -> None:
        """Add to the newest generation what it does not have, whatever the older ones have."""
        for fingerprint in fingerprints:
            self.forgotten.discard(fingerprint)  # its bits may be in an older generation only
            self._older = tuple(slice_.blocks for slice_ in reversed(self._full))
            LocalFilter.add(self, fingerprint)
        self._look_everywhere()

    def _turn(self, now: float) -> None:
        """Drop what is too old, and begin a generation if the newest one is old enough."""
        if self._since <= now < self._due:
            return
        life = generation_life(self._window)
        if now < self._since:
            self._set_back(now)
        self._closed = [one for one in self._closed if one.since + life > now]
        if now >= self._since + life:
            self._begin(now, keep=False)
        elif now >= self._since + generation_length(self._window):
            if self._empty or len(self._closed) + 1 == MOST_GENERATIONS:
                self._since = now  # with so many live ones the clock went back: none is dropped
            else:
                self._begin(now)
        for fingerprint in [one for one, last in self._ages.items() if last + self._window <= now]:
            del self._ages[fingerprint]
        self._look_everywhere()
        self._set_due()
        listed = [*self.forgotten]
        self.forgotten.clear()  # and fill it again with those whose bits are there
        found = LocalFilter.contains_many(self, listed)
        self.forgotten.update(fp for fp, there in zip(listed, found, strict=True) if there)

    def _set_back(self, now: float) -> None:
        """Have no generation be of the future: the clock went back. Each keeps a date of its own.

        By its date it is known what is old.
        """
        moved: dict[float, float] = {}
        for date in (self._since, *(generation.since for generation in reversed(self._closed))):
            moved[date] = min(date, now)
            now = moved[date] - _APART
        self._since = moved[self._since]
        self._closed = [replace(one, since=moved[one.since]) for one in self._closed]
        self._stored = [(then, moved.get(date, date)) for then, date in self._stored]
        self.old = max([date for then, date in moved.items() if then <= self.old], default=0.0)

    def _begin(self, now: float, *, keep: bool = True) -> None:
        """Begin a generation; close the newest one, or drop it if it is not to be kept."""
        if keep:
            self._closed.append(Generation(self._since, self._chain()))
        self._since = now
        self._fill(self._next_slice([], self._hashes), [])

    def _set_due(self) -> None:
        """Note when something is to be dropped or begun next."""
        oldest = self._closed[0].since if self._closed else self._since
        self._due = min(
            self._since + generation_length(self._window),
            oldest + generation_life(self._window),
        )

    def _next_slice(self, slices: list[Slice], hashes: int) -> Slice:
        others = [spec for generation in self._closed for spec in generation.specs]
        return self._slice_after(slices, others, hashes)

    def _slice_after(
        self, slices: Sequence[Slice], others: Sequence[SliceSpec], hashes: int
    ) -> Slice:
        """Return the slice to add to a generation.

        :param slices: those that it has.
        :param others: those of all other generations.
        """
        items = sum(generation.items for generation in self._closed)
        capacity = generation_capacity(items, self._capacity)
        rate = generation_rate(others, self._error_rate)
        specs = [slice_.spec for slice_ in slices]
        return Slice.new(next_slice(specs, capacity, rate, hashes))

    def _grow(self) -> None:
        full = self._chain()
        items = sum(slice_.items for slice_ in full)
        items += sum(generation.items for generation in self._closed)
        if items >= self._capacity and not self._told:
            self._told = True
            self._tell_growth(items)
        self._fill(self._next_slice(full, self._hashes), full)

    def _with(self, generation: Generation, fingerprints: Iterable[bytes]) -> Generation:
        """Return an older generation with more items."""
        # Not below what it was made for, so that what is restored bit by bit does not grow.
        state = FilterState(self._secret, self._hashes, self._digests, generation.slices)
        chain = LocalFilter.from_state(
            state,
            generation.slices[0].spec.capacity,
            self._error_rate / MOST_GENERATIONS,
            on_growth=int,
        )
        chain.add_many(fingerprints)
        return Generation(generation.since, chain.state().slices)


def filter_of(
    state: FilterState,
    capacity: int = DEFAULT_CAPACITY,
    error_rate: float = DEFAULT_ERROR_RATE,
    *,
    on_growth: Callable[[int], object] | None = None,
    clock: Callable[[], float] = time.time,
) -> LocalFilter:
    """Return the filter that `state` describes, with its window if it has one."""
    if state.window is None:
        return LocalFilter.from_state(state, capacity, error_rate, on_growth=on_growth, clock=clock)
    return WindowedFilter.windowed_from_state(
        state, capacity, error_rate, on_growth=on_growth, clock=clock
    )
