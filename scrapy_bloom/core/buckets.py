"""How many buckets: the arithmetic of the Redis layout ``sets``. No state, no I/O.

A bucket is a set of numbers. The hash of an item is one number and the bucket that it belongs to. A
new item is called seen if its bucket has the same number from another item. So with *n* items in
*B* buckets, and numbers of *b* bits, the rate of errors is ``n / B / 2^b``. It depends on the mean
load of the buckets only, and not on how evenly the items fall on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, expm1
from typing import Final

from scrapy_bloom.core.growth import SliceSpec, next_share
from scrapy_bloom.core.info import SliceCount

MOST_NUMBERS: Final = 512
"""Most numbers in a set that Redis keeps as a sorted array: ``set-max-intset-entries``."""

LOAD: Final = 384
"""Items in a bucket of a full slice, on average.

One more number is the bucket's sign of life. So a bucket gets too large for an array if it holds
6.4 standard deviations more than the average, which happens to one in 10^10. It would work, but
take ten times the memory.
"""

_BITS: Final = 32
_LEAST_RATE: Final = 2.0**-32
_WIDE_BITS: Final = 63

_LEAST_LOAD: Final = 32
"""With fewer items in a bucket, numbers of 63 bits in full buckets take less memory."""


def next_bucket_slice(slices: Sequence[SliceSpec], capacity: int, error_rate: float) -> SliceSpec:
    """Return the geometry of the slice to add to `slices`, with its size in buckets.

    Its numbers have 32 bits, which take 4 bytes. If that would leave less than
    :data:`_LEAST_LOAD` items in a bucket, they have 63 bits, which take 8. Arguments are those of
    :func:`growth.next_slice`.
    """
    items, share = next_share(slices, capacity, error_rate)
    bits = _BITS if share * 2**_BITS >= _LEAST_LOAD else _WIDE_BITS
    buckets = ceil(items / min(LOAD, share * 2**bits))
    return SliceSpec(items, items / buckets / 2**bits, buckets)


def is_wide(spec: SliceSpec) -> bool:
    """Return whether a slice has numbers of 63 bits.

    Its error rate tells: with numbers of 32 bits it is at least that of one item in each bucket.
    """
    return spec.error_rate < _LEAST_RATE


def count_numbers(spec: SliceSpec, items: int, sizes: Sequence[int]) -> SliceCount:
    """Return what is known of a slice from a sample of its buckets.

    :param items: items added to it.
    :param sizes: how many numbers each bucket of an even sample holds, without the sign of life; at
        least one.
    """
    space = float(2 ** (_WIDE_BITS if is_wide(spec) else _BITS))
    load = sum(sizes) / len(sizes)
    added = items / spec.blocks
    return SliceCount(
        spec.capacity,
        items,
        estimated_items=load * spec.blocks,
        used=load * spec.blocks,
        room=spec.blocks * float(MOST_NUMBERS - 1),
        rate=load / space,
        added_rate=added / space,
        lost_alone=items * added / 2 / space,
        bytes_at_capacity=bucket_bytes(spec, spec.capacity),
    )


def bucket_bytes(spec: SliceSpec, items: int) -> int:
    """Return about how many bytes of a server's memory a slice with so many items takes.

    Measured with Redis 7.0 and its allocator: 150 bytes for a bucket, which has a name and a place
    in the table of keys, and an eighth more than the numbers take.
    """
    made = spec.blocks * -expm1(-items / spec.blocks)
    return round(150 * made + 1.125 * (8 if is_wide(spec) else 4) * (items + made))
