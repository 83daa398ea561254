"""``scrapy bloom plan``: how large a filter gets; any of items, rate and memory by the others."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Final, NamedTuple

from scrapy_bloom.commands.output import Output
from scrapy_bloom.commands.project import Project
from scrapy_bloom.errors import SettingError
from scrapy_bloom.filter.growth import SliceSpec, filter_hashes, next_slice
from scrapy_bloom.filter.info import SliceCount, count_bits, expected_lost
from scrapy_bloom.filter.sizing import BLOCK_BYTES
from scrapy_bloom.options import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    MAX_CAPACITY,
    read_capacity,
    read_error_rate,
    write_size,
)

EXAMPLE = "10M -p 1e-6"
SUMMARY = "compute items, error rate or memory from the other two"

_HALF, _LEAST = 301, 15_000
"""Error rates of 0.5 and 1e-15, as thousandths of a power of ten: what is searched for the rate."""

_UNITS: Final = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class Size(NamedTuple):
    """A filter with some items in it.

    Attributes:
        items: how many different items it has.
        error_rate: bound for the share of new items that are called seen, in total.
        bytes: bytes of its bits.
        bytes_per_item: the same for each item.
        lost: how many items are expected to have been called seen on the way, and so are lost.
        slices: how many slices it has grown to.
        hashes: bits set for each item.
    """

    items: int
    error_rate: float
    bytes: int
    bytes_per_item: float
    lost: float
    slices: int
    hashes: int


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument("items", metavar="N", nargs="?", help="how many pages: 10M, 1e9")
    parser.add_argument("-p", "--error-rate", metavar="RATE", help="share of new pages to lose")
    parser.add_argument("--memory", metavar="BYTES", help="as much as there is: 512M, 4G")


def run(args: Namespace, project: Project, output: Output) -> int:  # noqa: ARG001 - as others
    """Print a filter of this capacity, and one that has grown to it from the default capacity."""
    computed = "memory"
    items = None if args.items is None else read_capacity("items", args.items)
    rate = DEFAULT_ERROR_RATE
    if args.error_rate is not None:
        rate = read_error_rate("error_rate", args.error_rate)
    if args.memory is not None:
        most = read_memory(args.memory)
        if items is None:
            items, computed = _most_items(most, rate), "items"
        elif args.error_rate is None:
            rate, computed = _least_rate(items, most), "error_rate"
        else:
            raise SettingError("give two of items, error rate and memory: the third is computed")
    elif items is None:
        raise SettingError("give a number of items, or --memory")
    sized = size(items, rate, items)
    grown = size(items, rate, min(items, DEFAULT_CAPACITY))
    rows = [("capacity set", *sized)]
    if grown != sized:
        rows.append((f"grown from {DEFAULT_CAPACITY:,}", *grown))
    value = {"computed": computed, "sized": sized._asdict(), "grown": grown._asdict()}
    output.show(value, rows)
    return 0


def size(items: int, error_rate: float, capacity: int) -> Size:
    """Return a filter of this capacity and error rate when `items` are in it."""
    hashes = filter_hashes(error_rate)
    slices: list[SliceSpec] = []
    counts: list[SliceCount] = []
    left = items
    while left:
        slices.append(next_slice(slices, capacity, error_rate, hashes))
        some = min(left, slices[-1].capacity)
        counts.append(count_bits(slices[-1], some, hashes))
        left -= some
    memory, lost = sum(one.bytes_at_capacity for one in counts), expected_lost(counts)
    return Size(items, error_rate, memory, memory / items, lost, len(slices), hashes)


def read_memory(value: str) -> int:
    """Return text such as ``512M``, ``4G``, ``1.5 GB`` as a number of bytes.

    :raises SettingError: if it is none.
    """
    text = value.strip().upper().removesuffix("B").removesuffix("I").strip()
    try:
        number = float(text.rstrip("KMGT")) * _UNITS.get(text[-1:], 1.0)
    except ValueError:
        number = 0.0
    if not BLOCK_BYTES <= number < 1e18:  # noqa: PLR2004 - an exabyte
        raise SettingError(f"memory = {value!r}: give bytes, such as '512M' or '4G', at least 8K.")
    return int(number)


def _most_items(memory: int, error_rate: float) -> int:
    def fits(items: int) -> bool:
        return size(items, error_rate, items).bytes <= memory

    if not fits(1):
        raise SettingError(f"{write_size(memory)} are too few for any item at this error rate.")
    return _last(fits, 1, MAX_CAPACITY)


def _least_rate(items: int, memory: int) -> float:
    def takes(power: int) -> int:
        return size(items, 10 ** (-power / 1000), items).bytes

    if takes(_HALF) > memory:
        raise SettingError(
            f"{write_size(memory)} are too few for {items:,} items: even if every second new page"
            f" were lost, they would take {write_size(takes(_HALF))}."
        )
    return float(10 ** (-_last(lambda power: takes(power) <= memory, _HALF, _LEAST) / 1000))


def _last(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number that fits, from one that does."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
