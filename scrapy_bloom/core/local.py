"""The filter in this process's own memory."""

from __future__ import annotations

import copy
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitarray.util import zeros

from scrapy_bloom.core import sizing
from scrapy_bloom.core.growth import filter_hashes, next_slice, outgrown
from scrapy_bloom.core.hashing import make_probe, new_secret
from scrapy_bloom.core.info import FilterInfo, filter_info
from scrapy_bloom.core.state import EMPTY, FilterState, Slice
from scrapy_bloom.errors import SettingError
from scrapy_bloom.options import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    read_capacity,
    read_error_rate,
)

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class LocalFilter:
    """A Bloom filter in memory that grows without limit and keeps its error rate.

    >>> seen = LocalFilter(capacity=1000, error_rate=1e-6)
    >>> seen.add(b"one"), seen.add(b"one"), b"two" in seen
    (False, True, False)

    An add or a check takes time proportional to the number of slices, which grows with the
    logarithm of items / capacity. Only one thread may use it at a time. A copy of it, or what comes
    out of a pickle, is a separate filter with the same marks and the same secret.

    :param capacity: items in the first slice, 1 to 10,000,000,000; each further slice doubles the
        total.
    :param error_rate: bound for the share of new items that are called seen, in total, from 1e-15
        to below 1.
    :param digests: whether fingerprints of 20 bytes are SHA-1 digests, as Scrapy's are. Pass False
        if somebody else can choose their bytes: then all go through a slower hash.
    :param on_growth: called with the number of items when the first slice is full and the filter
        begins to grow; None for a warning in the log.
    :param clock: tells the time in seconds since 1970, for :meth:`add_aged`.
    :raises SettingError: if `capacity` or `error_rate` is outside its range.

    Attributes:
        forgotten: fingerprints that are new once more, though their bits are set. The filter has
            each of them.
        readmitted: how many of them were added again so far.
        old: what :meth:`begin_after` was given; 0 before. It may change with what it stands for.
    """

    __slots__ = (
        "_ages",
        "_blocks",
        "_capacity",
        "_clock",
        "_digests",
        "_error_rate",
        "_full",
        "_hashes",
        "_older",
        "_on_growth",
        "_probe",
        "_room",
        "_secret",
        "_spec",
        "forgotten",
        "old",
        "readmitted",
    )

    def __init__(
        self,
        capacity: int = DEFAULT_CAPACITY,
        error_rate: float = DEFAULT_ERROR_RATE,
        *,
        digests: bool = True,
        on_growth: Callable[[int], object] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._capacity = read_capacity("capacity", capacity)
        self._error_rate = read_error_rate("error_rate", error_rate)
        self._on_growth = on_growth
        self.forgotten: set[bytes] = set()
        self.readmitted = 0
        self._load(self._new_state(digests=digests))

    @classmethod
    def from_state(
        cls,
        state: FilterState,
        capacity: int = DEFAULT_CAPACITY,
        error_rate: float = DEFAULT_ERROR_RATE,
        *,
        on_growth: Callable[[int], object] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Return the filter that `state` describes. It works on the bits of `state`, not on a copy.

        :param capacity: the least number of items in each new slice.
        :param error_rate: bound for the total error rate, as far as new slices can still keep it.
        :raises SettingError: if `capacity` or `error_rate` is outside its range.
        """
        self = cls(capacity, error_rate, digests=state.digests, on_growth=on_growth, clock=clock)
        self._load(state)
        return self

    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before."""
        positions = self._probe(fingerprint)
        h = positions.pop()
        blocks = self._blocks
        index = h * len(blocks) >> 32
        block = blocks[index]
        if block[positions].all():
            return not self.forgotten or self._is_not_readmitted(fingerprint)
        for older in self._older:
            block_there = older[h * len(older) >> 32]
            # For most new items this one bit is unset, and testing it is cheaper than testing all
            # k.
            if block_there[positions[0]] and block_there[positions].all():
                return not self.forgotten or self._is_not_readmitted(fingerprint)
        if not self._room:
            self._grow()
            blocks = self._blocks
            index = h * len(blocks) >> 32
            block = blocks[index]
        if block is EMPTY:
            block = blocks[index] = zeros(sizing.BLOCK_BITS, "big")
        block[positions] = 1
        self._room -= 1
        return False

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; return for each, in order, whether it was there before."""
        return [self.add(fingerprint) for fingerprint in fingerprints]

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether this method let a fingerprint through less than `max_age` seconds ago.

        If not, add it, and remember the time: about 130 bytes for each fingerprint. What came by
        other methods only is let through, since nobody knows when that was.
        """
        now = self._clock()
        last = self._ages.get(fingerprint)
        if last is not None and last > now:  # the clock went back: it counts as of now
            last = self._ages[fingerprint] = now
        fresh = last is not None and now - last < max_age
        if fresh and fingerprint not in self.forgotten:
            return True
        self._ages[fingerprint] = now
        self.renew(fingerprint)
        return False

    def renew(self, fingerprint: bytes) -> None:
        """Have a fingerprint, let through just now, be kept for as long as any other one."""
        self.add(fingerprint)

    @property
    def ages(self) -> Mapping[bytes, float]:
        """When :meth:`add_aged` last let each fingerprint through. Follows what comes."""
        return self._ages

    @property
    def since(self) -> float | None:
        """When the generation began that takes items now; None without a window."""
        return None

    @property
    def window(self) -> float | None:
        """Seconds that items are kept, at least; None for ever."""
        return None

    def now(self) -> float:
        """Return the time by the clock of the filter, in seconds since 1970."""
        return self._clock()

    def restore(
        self,
        fingerprints: Iterable[bytes],
        since: float | None = None,  # noqa: ARG002 - it has no generations
    ) -> bool:
        """Add what an earlier run has added; return False if its time is over.

        :param since: when the generation began that it was added to; None if that is not known.
        """
        self.add_many(fingerprints)
        return True

    def restore_ages(self, ages: Mapping[bytes, float]) -> None:
        """Take over when an earlier run has let fingerprints through."""
        for fingerprint, last in ages.items():
            self._ages[fingerprint] = max(last, self._ages.get(fingerprint, last))

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether the fingerprint was added. Changes nothing."""
        return self.contains_many([fingerprint])[0]

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added. Changes nothing."""
        probe, newest, older = self._probe, self._blocks, self._older
        count = len(newest)
        answers = []
        for fingerprint in fingerprints:
            positions = probe(fingerprint)
            h = positions.pop()
            seen = newest[h * count >> 32][positions].all()
            if not seen and older:
                seen = any(blocks[h * len(blocks) >> 32][positions].all() for blocks in older)
            answers.append(seen and fingerprint not in self.forgotten)
        return answers

    def forget(self, fingerprint: bytes) -> bool:
        """Make a fingerprint new once more; return whether it was there.

        Its bits are also those of others, and stay. So it is kept in an exact list until it is
        added again: about 90 bytes each.
        """
        return self.forget_many([fingerprint])[0]

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make fingerprints new once more; return for each, in order, whether it was there."""
        known = list(fingerprints)
        # Of repeats the first one takes the answer; for the others it is gone.
        there = dict(zip(known, self.contains_many(known), strict=True))
        answers = [there.pop(fingerprint, False) for fingerprint in known]
        self.forgotten.update(fp for fp, found in zip(known, answers, strict=True) if found)
        for fingerprint in known:
            self._ages.pop(fingerprint, None)
        return answers

    def update(self, other: LocalFilter) -> None:
        """Add all that another copy of this filter has. That one stays as it is.

        Slices can come to hold more than they were sized for: see the ``estimated_fp_rate`` of
        :meth:`info`. What either of the two has forgotten is new once more.

        :raises SettingError: if they are not copies of one filter, which share its secret and its
            slices, or if they have a window.
        """
        ours, theirs = self.state(), other.state()
        longest = max(ours.slices, theirs.slices, key=len)
        alike = [
            (a.spec, ours.secret, ours.hashes, ours.digests)
            == (b.spec, theirs.secret, theirs.hashes, theirs.digests)
            for a, b in zip(ours.slices, theirs.slices, strict=False)
        ]
        if not all(alike) or self.window is not None or other.window is not None:
            raise SettingError(
                "update() takes a copy of the same filter, without a window: with another secret or"
                " other slices the bits of one mean nothing in the other. Add the fingerprints"
                " instead."
            )
        slices = [
            _union(a, b, self._hashes) for a, b in zip(ours.slices, theirs.slices, strict=False)
        ]
        slices += copy.deepcopy(longest[len(slices) :])
        self._load(replace(ours, slices=slices))
        self.restore_ages(other.ages)
        self.forgotten |= other.forgotten

    def info(self) -> FilterInfo:
        """Return the state of the filter now. Counts every bit: about 1 ms for each 4 MB."""
        state = self.state()
        info = filter_info(
            [state.count()],
            error_rate=self._error_rate,
            memory=sum(map(_memory, state.slices)),
        )
        return replace(info, items=info.items - len(self.forgotten))

    def clear(self) -> bool:
        """Forget everything; the filter is as it was when it was new. Returns True."""
        self.forgotten.clear()
        self._load(self._new_state(digests=self._digests))
        return True

    def close(self) -> None:
        """Do nothing: memory is all that this filter holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def secret(self) -> bytes:
        """The key of this filter's hash, 16 bytes. Who knows it can make any page look seen."""
        return self._secret

    def until_now(self) -> float:
        """Return a number that stands for what is in the filter now, and not for what comes later.

        0 if there is nothing. It is for the methods below, also of the same filter in a later run.
        """
        return len(self._full) + (self._room < self._spec.capacity)

    def begin_after(self, until: float) -> None:
        """Keep what comes apart from what :meth:`until_now` stands for, as far as possible.

        From now on :attr:`old` stands for that.
        """
        self.old = until
        if len(self._full) < until:
            full = [*self.state().slices]
            self._fill(self._next_slice(full, self._hashes), full)

    @property
    def old_as_stored(self) -> float:
        """What :attr:`old` was when the filter was stored, for notes that are kept beside that."""
        return self.old

    @property
    def is_set_back(self) -> bool:
        """Whether dates have changed since it was stored, because the clock went back."""
        return False

    def was_in(self, fingerprint: bytes, until: float) -> bool:
        """Return whether a fingerprint, forgotten or not, is in what :meth:`until_now` stands for.

        What has come later may be in it, too, if it could not be kept apart.
        """
        positions = self._probe(fingerprint)
        h = positions.pop()
        return any(
            slice_.blocks[h * len(slice_.blocks) >> 32][positions].all()
            for slice_ in self._slices_until(until)
        )

    def state(self) -> FilterState:
        """Return what the filter consists of, to be stored. The bits are shared, not copied.

        :attr:`forgotten` is to be stored beside it.
        """
        return FilterState(
            self._secret, self._hashes, self._digests, self._chain(), dict(self._ages)
        )

    def __copy__(self) -> Self:
        # Two filters on the same bits would not count each other's items: the bits are copied.
        twin = object.__new__(type(self))
        *parts, state, forgotten = self.__getstate__()
        twin.__setstate__((*parts, copy.deepcopy(state), forgotten))
        return twin

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self.__copy__()  # both tell the same `on_growth`

    def __getstate__(self) -> tuple[Any, ...]:
        parts = self._capacity, self._error_rate, self._on_growth, self._clock, self.state()
        return *parts, self.forgotten

    def __setstate__(self, parts: tuple[Any, ...]) -> None:
        *parts_before, state, forgotten = parts
        self._capacity, self._error_rate, self._on_growth, self._clock = parts_before
        self.forgotten = set(forgotten)
        self.readmitted = 0
        self._load(state)

    def _is_not_readmitted(self, fingerprint: bytes) -> bool:
        """Return True for a fingerprint that is seen, and False once for one that was forgotten."""
        if fingerprint not in self.forgotten:
            return True
        self.forgotten.remove(fingerprint)
        self.readmitted += 1
        return False

    def _new_state(self, *, digests: bool) -> FilterState:
        return FilterState(new_secret(), filter_hashes(self._error_rate), digests, [])

    def _load(self, state: FilterState) -> None:
        """Become the filter that `state` describes; one without slices gets its first."""
        *full, newest = state.slices or [self._next_slice([], state.hashes)]
        self._secret, self._hashes, self._digests = state.secret, state.hashes, state.digests
        self._probe = make_probe(state.secret, state.hashes, digests=state.digests)
        self.old = 0.0
        self._ages = dict(state.ages)
        self._fill(newest, full)

    def _fill(self, newest: Slice, full: list[Slice]) -> None:
        """From now on add to `newest`, and look into the `full` slices as well."""
        self._full = full
        # Newest first: each slice holds as many items as all older ones together.
        self._older = tuple(slice_.blocks for slice_ in reversed(full))
        self._spec = newest.spec
        self._blocks = newest.blocks
        self._room = newest.spec.capacity - newest.items

    def _slices_until(self, until: float) -> Sequence[Slice]:
        return self._full[: int(until)]

    def _chain(self) -> list[Slice]:
        """Return the slices, oldest first."""
        newest = Slice(self._spec, self._spec.capacity - self._room, self._blocks)
        return [*self._full, newest]

    def _grow(self) -> None:
        full = self._chain()
        if len(full) == 1:
            self._tell_growth(full[0].items)
        self._fill(self._next_slice(full, self._hashes), full)

    def _next_slice(self, slices: list[Slice], hashes: int) -> Slice:
        specs = [slice_.spec for slice_ in slices]
        return Slice.new(next_slice(specs, self._capacity, self._error_rate, hashes))

    def _tell_growth(self, items: int) -> None:
        if self._on_growth is None:
            logger.warning("Bloom filter: %s", outgrown(items, self._error_rate, "capacity"))
        else:
            self._on_growth(items)


def _union(one: Slice, other: Slice, hashes: int) -> Slice:
    """Return a slice with the bits of two that have the same geometry."""
    blocks = [
        a if b is EMPTY else b.copy() if a is EMPTY else a | b
        for a, b in zip(one.blocks, other.blocks, strict=True)
    ]
    union = Slice(one.spec, max(one.items, other.items), blocks)
    estimate = min(union.count(hashes).estimated_items, one.spec.capacity)
    return replace(union, items=max(union.items, round(estimate)))


def _memory(slice_: Slice) -> int:
    """Return the bytes of memory that the blocks take."""
    touched = sum(sys.getsizeof(block) for block in slice_.blocks if block is not EMPTY)
    return sys.getsizeof(slice_.blocks) + touched
