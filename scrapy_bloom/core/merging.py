"""One filter out of several: bit by bit where they agree, slice beside slice where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar, cast

from bitarray import bitarray

from scrapy_bloom.core import sizing
from scrapy_bloom.core.growth import SliceSpec
from scrapy_bloom.core.info import SliceCount, count_bits
from scrapy_bloom.core.numbers import NumbersState, merge_numbers
from scrapy_bloom.core.state import EMPTY, FilterState, Slice
from scrapy_bloom.errors import SettingError

MOST_SLICES: Final = 64
"""More slices than any filter grows to: each is as large as all before it."""


AnyState = FilterState | NumbersState
"""What a filter consists of, in whichever layout."""


def merge_states(states: Sequence[AnyState]) -> AnyState:
    """Return a filter that has every item of these filters. Theirs stay as they are.

    Slices of the same geometry become one, which has every bit or number that any of them has
    (Bloom filters of one hash and size are closed under union). Any other slice stays a slice of
    its own. A slice can hold more items than it was sized for then: see :func:`counted`.

    :param states: at least one, all with one layout, one secret and one k.
    :raises SettingError: if they hash in different ways: then nothing in one means anything in the
        other, and a filter cannot be read out to be hashed anew.
    """
    first = states[0]
    for other in states[1:]:
        check_same_hash(first, other)
    if isinstance(first, NumbersState):
        same_numbers = _grouped([cast("NumbersState", state).slices for state in states])
        return NumbersState(first.secret, first.digests, [*map(merge_numbers, same_numbers)])
    same_bits = _grouped([cast("FilterState", state).slices for state in states])
    merged = [_merge_slices(same, first.hashes) for same in same_bits]
    return FilterState(first.secret, first.hashes, first.digests, merged)


class _HasSpec(Protocol):
    @property
    def spec(self) -> SliceSpec: ...


_Slice = TypeVar("_Slice", bound=_HasSpec)


def _grouped(chains: Sequence[Sequence[_Slice]]) -> list[list[_Slice]]:
    """Return the slices of several filters, those of one geometry together.

    :raises SettingError: if they are too many for one filter.
    """
    groups: list[list[_Slice]] = []
    for chain in chains:
        free = list(range(len(groups)))
        for slice_ in chain:
            match = next((i for i in free if groups[i][0].spec == slice_.spec), None)
            if match is None:
                groups.append([slice_])
            else:
                free.remove(match)
                groups[match].append(slice_)
    if len(groups) > MOST_SLICES:
        raise SettingError(
            f"The merged filter would have {len(groups)} slices, at most {MOST_SLICES} are"
            f" possible. Merge fewer filters at once."
        )
    # The newest slice takes what is added: the largest has the most room.
    groups.sort(key=lambda same: same[0].spec.capacity)
    return groups


def check_same_hash(one: AnyState, other: AnyState) -> None:
    """Refuse two filters that hash in different ways.

    :raises SettingError: saying what differs, without showing it.
    """
    for what, differs in (
        ("layouts", one.layout != other.layout),
        ("secrets", one.secret != other.secret),
        ("numbers of bits per item", one.hashes != other.hashes),
        ("kinds of hash", one.digests != other.digests),
    ):
        if differs:
            raise SettingError(
                f"the filters have different {what}, so the bits of one mean nothing in the other,"
                f" and a Bloom filter cannot be read out. Only copies of one filter can be merged."
                f" Import the URLs or fingerprints instead."
            )


def counted(slice_: Slice, hashes: int) -> int:
    """Return the number of items in a slice, estimated from its bits alone."""
    ones = sum(block.count() for block in slice_.blocks if block is not EMPTY)
    return round(min(sizing.estimated_items(ones, slice_.spec.blocks, hashes), 2.0**62))


def specs_of(state: AnyState) -> list[SliceSpec]:
    """Return the geometry of each slice."""
    return [slice_.spec for slice_ in state.slices]


def count_slices(state: AnyState) -> list[SliceCount]:
    """Return what is known of each slice, from a count of all that it holds."""
    if isinstance(state, NumbersState):
        return [slice_.count() for slice_ in state.slices]
    return [_count_slice(slice_, state.hashes) for slice_ in state.slices]


def _count_slice(slice_: Slice, hashes: int) -> SliceCount:
    """Return what is known of a slice, from a count of all of its bits."""
    fills = [
        0.0 if block is EMPTY else block.count() / sizing.BLOCK_BITS for block in slice_.blocks
    ]
    return count_bits(slice_.spec, slice_.items, fills, hashes)


def same_bits(one: FilterState, other: FilterState) -> bool:
    """Return whether two filters are the same in all but how many clean stops they have had."""
    return (
        (one.secret, one.hashes, one.digests) == (other.secret, other.hashes, other.digests)
        and [slice_.spec for slice_ in one.slices] == [slice_.spec for slice_ in other.slices]
        and all(a.blocks == b.blocks for a, b in zip(one.slices, other.slices, strict=True))
    )


def _merge_slices(same: Sequence[Slice], hashes: int) -> Slice:
    """Return one slice out of some with the same geometry."""
    if len(same) == 1:
        return same[0]
    spec = same[0].spec
    touched: dict[int, bitarray] = {}
    for slice_ in same:
        for number, block in enumerate(slice_.blocks):
            if block is not EMPTY:
                if number in touched:
                    touched[number] |= block
                else:
                    touched[number] = block.copy()
    merged = Slice.of(spec, 0, touched)
    # At least as many as the fullest, at most all together; a slice counts no more than it is
    # sized for, and is full then.
    low, high = max(s.items for s in same), sum(s.items for s in same)
    items = min(max(counted(merged, hashes), low), high, spec.capacity)
    return Slice(spec, items, merged.blocks)
