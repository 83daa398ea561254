"""What a filter of the layout ``sets`` consists of: in each bucket a set of numbers.

It is moved as it is, and asked. Only Redis adds to it: see ``redis/lua/_sets.lua``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import ClassVar, Final

from scrapy_bloom.core.buckets import count_numbers, is_wide
from scrapy_bloom.core.growth import SliceSpec, live_slices
from scrapy_bloom.core.hashing import PROBE_BYTES, make_hash
from scrapy_bloom.core.info import SliceCount
from scrapy_bloom.core.state import FilterState

HASH_BYTES: Final = PROBE_BYTES // 2
"""How many bytes of a hash tell the bucket and the number of an item."""

_HASH: Final = Struct(">IiI4x")  # picks the bucket; the number; what makes it a wide one
_DIGITS: Final = 10**9  # a wide number is written as two, the second with nine digits


@dataclass(frozen=True)
class NumbersSlice:
    """One slice.

    Attributes:
        spec: its geometry, with its size in buckets.
        buckets: the numbers of each bucket that has any, as :func:`pack` makes them.
        since: when its generation began, in seconds since 1970; None without a window.
    """

    spec: SliceSpec
    buckets: Mapping[int, array[int]] = field(repr=False)
    since: float | None = None

    @property
    def items(self) -> int:
        """How many numbers it has. None of them stands for two items."""
        return sum(map(len, self.buckets.values()))

    def count(self) -> SliceCount:
        """Return what is known of it."""
        sizes = [len(numbers) for numbers in self.buckets.values()]
        empty = self.spec.blocks - len(sizes)
        return count_numbers(self.spec, self.items, sizes + [0] * empty)


@dataclass(frozen=True)
class NumbersState:
    """All that such a filter, or a shard of one, consists of.

    Attributes:
        layout: ``sets``.
        hashes: 1: an item is one number.
        secret: the key of its hash, 16 bytes.
        digests: whether 20-byte fingerprints are taken as SHA-1 digests (see `hashing`).
        slices: its slices, oldest first.
        window: seconds that items are kept for, at least; None for ever.
    """

    layout: ClassVar[str] = "sets"
    hashes: ClassVar[int] = 1
    secret: bytes = field(repr=False)
    digests: bool
    slices: Sequence[NumbersSlice]
    window: float | None = None

    def live(self, now: float) -> NumbersState:
        """Return it without the generations that are over; with one that begins now if all are."""
        if self.window is None:
            return self
        slices = live_slices(self.slices, self.window, now)
        return replace(self, slices=slices or [NumbersSlice(self.slices[-1].spec, {}, now)])

    def count(self) -> list[SliceCount]:
        """Return what is known of each slice."""
        return [slice_.count() for slice_ in self.slices]

    @property
    def items(self) -> int:
        """How many items it has."""
        return sum(slice_.items for slice_ in self.slices)

    @property
    def memory(self) -> int:
        """Bytes of its numbers."""
        return sum(slice_.items * number_bytes(slice_.spec) for slice_ in self.slices)

    def finder(self) -> Callable[[bytes], bool]:
        """Return what tells whether a fingerprint was added."""
        locate = self._locator()

        def find(fingerprint: bytes) -> bool:
            return any(
                _place(self.slices[index].buckets.get(bucket, ()), number) is not None
                for index, bucket, number in locate(fingerprint)
            )

        return find

    def without(self, fingerprints: Iterable[bytes]) -> NumbersState:
        """Return the filter without the numbers of these fingerprints."""
        locate = self._locator()
        changed = [dict(slice_.buckets) for slice_ in self.slices]
        for fingerprint in fingerprints:
            for index, bucket, number in locate(fingerprint):
                numbers = changed[index].get(bucket, array("i"))
                place = _place(numbers, number)
                if place is not None:
                    changed[index][bucket] = numbers[:place] + numbers[place + 1 :]
        slices = [
            replace(slice_, buckets={number: some for number, some in buckets.items() if some})
            for slice_, buckets in zip(self.slices, changed, strict=True)
        ]
        return replace(self, slices=slices)

    def _locator(self) -> Callable[[bytes], Iterator[tuple[int, int, int]]]:
        """Return what tells where a fingerprint would be: for each slice, bucket and number."""
        make = make_hash(self.secret, digests=self.digests, size=HASH_BYTES)
        sizes = [(one.spec.blocks, is_wide(one.spec)) for one in self.slices]

        def locate(fingerprint: bytes) -> Iterator[tuple[int, int, int]]:
            pick, code, more = _HASH.unpack(make(fingerprint))
            for index, (size, wide) in enumerate(sizes):
                yield index, pick * size >> 32, _wide_number(code, more) if wide else code or 1

        return locate


AnyState = FilterState | NumbersState
"""What a filter consists of, in whichever layout."""


def number_bytes(spec: SliceSpec) -> int:
    """Return the bytes that one number of a slice takes at rest."""
    return 8 if is_wide(spec) else 4


def pack(numbers: Iterable[int], spec: SliceSpec) -> array[int]:
    """Return the numbers of a bucket in order, without its sign of life.

    :raises OverflowError: if one of them is none that the slice could have.
    """
    return array("q" if is_wide(spec) else "i", sorted({*numbers} - {0}))


def _place(numbers: Sequence[int], number: int) -> int | None:
    """Return where a number is among others that are in order; None if it is not."""
    place = bisect_left(numbers, number)
    return place if place < len(numbers) and numbers[place] == number else None


def _wide_number(code: int, more: int) -> int:
    bits = more >> 29
    code = code * 4 + bits % 4
    rest = more - (bits << 29)
    return (code + 1) * _DIGITS + rest if code >= 0 else code * _DIGITS - rest
