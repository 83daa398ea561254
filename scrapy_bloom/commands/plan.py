"""``scrapy bloom plan``: how large a filter gets; any of items, rate and memory by the others."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log
from typing import Final

from scrapy_bloom.commands.context import Context
from scrapy_bloom.commands.output import Cell
from scrapy_bloom.errors import SettingError
from scrapy_bloom.filter.growth import filter_hashes, next_slice
from scrapy_bloom.filter.info import SliceCount, count_bits, expected_lost
from scrapy_bloom.filter.sizing import BLOCK_BYTES
from scrapy_bloom.options import (
    DEFAULT_ERROR_RATE,
    MAX_CAPACITY,
    MIN_ERROR_RATE,
    read_capacity,
    read_error_rate,
    write_size,
)
from scrapy_bloom.redis.plan import Plan as _Shard
from scrapy_bloom.redis.plan import Slice, bucket_bytes, count_numbers

EXAMPLE = "10M -p 1e-6"
SUMMARY = "compute items, error rate or memory from the other two"

_COLUMNS = ("", "items", "error rate", "memory", "bytes/item", "pages lost", "slices", "hashes")
_LARGEST_RATE: Final = 0.5
_HALVINGS: Final = 60


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument("items", metavar="N", nargs="?", help="how many pages: 10M, 1e9")
    parser.add_argument("-p", "--error-rate", metavar="RATE", help="share of new pages to lose")
    parser.add_argument("--memory", metavar="BYTES", help="as much as there is: 512M, 4G")
    parser.add_argument("--grown-from", metavar="N", default="1M", help="capacity to grow from")
    parser.add_argument("--backend", choices=("local", "redis"), default="local")
    parser.add_argument("--layout", choices=("bitmap", "sets"), default="bitmap", help="of Redis")


def run(args: Namespace, context: Context) -> int:
    """Print the plan."""
    layout = args.layout
    if layout != "bitmap" and args.backend != "redis":
        raise SettingError(f"--layout {layout} is one of --backend redis")
    planned = plan(
        args.items, args.error_rate, args.memory, grown_from=args.grown_from, layout=layout
    )
    if context.output.as_json:
        context.output.json(planned)
        return 0
    rows = [_row("capacity set", planned.sized)]
    if planned.grown.capacity != planned.sized.capacity:
        rows.append(_row(f"grown from {planned.grown.capacity:,}", planned.grown))
    context.output.table(f"{planned.asked.replace('_', ' ')} computed", _COLUMNS, rows)
    return 0


def _row(name: str, size: Size) -> list[object]:
    return [
        name,
        size.items,
        size.error_rate,
        Cell(size.bytes, write_size(size.bytes)),
        round(size.bytes_per_item, 2),
        Cell(size.lost, f"{size.lost:,.2f}"),
        size.slices,
        size.hashes,
    ]


@dataclass(frozen=True)
class Size:
    """A filter with some items in it.

    Attributes:
        items: how many different items it has.
        error_rate: bound for the share of new items that are called seen, in total.
        capacity: items in its first slice.
        bytes: bytes of its bits.
        lost: how many items are expected to have been called seen on the way, and so are lost.
        hashes: bits set for each item.
        slices: how many slices it has grown to.
    """

    items: int
    error_rate: float
    capacity: int
    bytes: int
    lost: float
    hashes: int
    slices: int

    @property
    def bytes_per_item(self) -> float:
        """Bytes of its bits for each item."""
        return self.bytes / self.items


@dataclass(frozen=True)
class Answer:
    """The answer to one question.

    Attributes:
        asked: what was computed: ``memory``, ``items`` or ``error_rate``.
        sized: the filter, if its capacity is set to the number of items.
        grown: the same items in a filter that has grown from a smaller capacity.
    """

    asked: str
    sized: Size
    grown: Size


def plan(
    items: float | str | None = None,
    error_rate: float | str | None = None,
    memory: float | str | None = None,
    *,
    grown_from: float | str = 1_000_000,
    layout: str = "bitmap",
) -> Answer:
    """Compute what is not given of items, error rate and memory.

    :param items: how many different pages: ``10_000_000``, ``"1e9"``, ``"10M"``.
    :param error_rate: as ``BLOOM_ERROR_RATE``; if neither it nor the memory is asked for, 1e-6.
    :param memory: bytes of its bits: ``512_000_000``, ``"512M"``, ``"4G"``.
    :param grown_from: the capacity that the filter grows from, to compare; as ``BLOOM_CAPACITY``.
    :param layout: as for :func:`size`.
    :raises SettingError: if a value cannot be used, or not two of three are given.
    """
    count = None if items is None else read_capacity("items", items)
    start = read_capacity("grown_from", grown_from)
    most = None if memory is None else read_memory("memory", memory)
    rate = None if error_rate is None else read_error_rate("error_rate", error_rate)
    if most is None:
        if count is None:
            raise SettingError("give a number of items, or --memory")
        asked, rate = "memory", DEFAULT_ERROR_RATE if rate is None else rate
    elif count is None:
        asked, rate = "items", DEFAULT_ERROR_RATE if rate is None else rate
        count = _most_items(most, rate, layout)
    elif rate is None:
        asked, rate = "error_rate", _least_rate(count, most, layout)
    else:
        raise SettingError("give two of items, error rate and memory: the third is computed")
    return Answer(
        asked,
        size(count, rate, count, layout),
        size(count, rate, min(start, count), layout),
    )


def size(items: int, error_rate: float, capacity: int, layout: str = "bitmap") -> Size:
    """Return a filter of this capacity and error rate when `items` are in it.

    :param layout: how it is stored: ``bitmap``, as in memory, in a file and in Redis, or ``sets``,
        in Redis only.
    """
    sets = layout == "sets"
    hashes = 1 if sets else filter_hashes(error_rate)
    plan = _Shard(capacity, error_rate, layout=layout)
    slices: list[Slice] = []
    counts: list[SliceCount] = []
    memory = 0
    left = items
    while left:
        if sets:
            slices.append(plan.next(slices))
        else:
            spec = next_slice([one.spec for one in slices], capacity, error_rate, hashes)
            slices.append(Slice(spec.capacity, spec.error_rate, spec.blocks, 0))
        one = slices[-1]
        some = min(left, one.capacity)
        if sets:  # whose memory is that of the numbers in it
            counts.append(count_numbers(one, some, [0]))
            memory += bucket_bytes(one, some)
        else:
            counts.append(count_bits(one.spec, some, [0.0], hashes))
            memory += counts[-1].bytes_at_capacity
        left -= some
    return Size(items, error_rate, capacity, memory, expected_lost(counts), hashes, len(slices))


def read_memory(name: str, value: float | str) -> int:
    """Return `value` as a number of bytes: a number, or text such as ``512M``, ``4G``, ``1.5 GB``.

    :raises SettingError: if it is none.
    """
    text = str(value).strip().upper().removesuffix("B").removesuffix("I").strip()
    factor = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(text[-1:], 1.0)
    try:
        number = float(text.rstrip("KMGT")) * factor
    except ValueError:
        number = 0.0
    if not BLOCK_BYTES <= number < 1e18:  # noqa: PLR2004 - an exabyte
        raise SettingError(f"{name} = {value!r}: give bytes, such as '512M' or '4G', at least 8K.")
    return int(number)


def _most_items(memory: int, error_rate: float, layout: str) -> int:
    def fits(items: int) -> bool:
        return size(items, error_rate, items, layout).bytes <= memory

    if not fits(1):
        raise SettingError(f"{write_size(memory)} are too few for any item at this error rate.")
    low, high = 1, MAX_CAPACITY + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _least_rate(items: int, memory: int, layout: str) -> float:
    def fits(rate: float) -> bool:
        return size(items, rate, items, layout).bytes <= memory

    if not fits(_LARGEST_RATE):
        least = write_size(size(items, _LARGEST_RATE, items, layout).bytes)
        raise SettingError(
            f"{write_size(memory)} are too few for {items:,} items: even if every second new page"
            f" were lost, they would take {least}."
        )
    if fits(MIN_ERROR_RATE):
        return MIN_ERROR_RATE
    return _bisect(fits, MIN_ERROR_RATE, _LARGEST_RATE)


def _bisect(fits: Callable[[float], bool], low: float, high: float) -> float:
    """Return the least rate that fits, to three digits."""
    for _ in range(_HALVINGS):
        middle = exp((log(low) + log(high)) / 2)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return float(f"{high * 1.0005:.3g}")
