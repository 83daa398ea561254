"""``scrapy bloom plan``: compute pages, error rate or memory from the other two."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from bisect import bisect
from dataclasses import asdict
from functools import partial
from typing import Final

from scrapy_bloom.commands.output import show, table
from scrapy_bloom.commands.project import Project
from scrapy_bloom.errors import SettingError
from scrapy_bloom.filter.info import FilterInfo, SliceItems, filter_info
from scrapy_bloom.filter.sizing import BLOCK_BYTES, next_slice
from scrapy_bloom.values import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    MAX_CAPACITY,
    THOUSANDS,
    number,
    read_capacity,
    read_error_rate,
    write_size,
)

EXAMPLE = "10M -p 1e-6"

_RATES: Final = [10 ** (-power / 1000) for power in range(301, 15_001)]
"""The error rates that are searched, from 0.5 to 1e-15."""

_read_memory: Final = number(
    int, BLOCK_BYTES, 1e18, "bytes, such as 512M or 4G, at least 8192", THOUSANDS
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("items", metavar="N", nargs="?", help="how many pages: 10M, 1e9")
    parser.add_argument("-p", "--error-rate", metavar="RATE", help="share of new pages to lose")
    parser.add_argument("--memory", metavar="BYTES", help="as much as there is: 512M, 4G")


def run(args: Namespace, project: Project) -> int:  # noqa: ARG001 - as others
    """Print a filter of this capacity, and one that has grown to it from the default capacity."""
    items = None if args.items is None else read_capacity("pages", args.items)
    rate = DEFAULT_ERROR_RATE
    if args.error_rate is not None:
        rate = read_error_rate("error_rate", args.error_rate)
    memory = None if args.memory is None else _read_memory("memory", args.memory)
    if items is None:
        if memory is None:
            raise SettingError("expected a number of pages, or --memory")
        items = bisect(range(1, MAX_CAPACITY + 1), memory, key=partial(_needed, rate=rate))
    elif memory is not None:
        if args.error_rate is not None:
            raise SettingError("expected two of pages, error rate and memory, not all three")
        fitting = bisect(_RATES, memory, key=partial(_needed, items))
        if not fitting:
            raise SettingError(
                f"{write_size(memory)} is too little for {items:,} pages: even if every second new"
                f" page were lost, they would need {write_size(_needed(items, _RATES[0]))}."
            )
        rate = _RATES[fitting - 1]
    sized = size(items, rate, items)
    grown = size(items, rate, min(items, DEFAULT_CAPACITY))
    named = [(f"BLOOM_CAPACITY = {items:,}", sized), (f"grown from {DEFAULT_CAPACITY:,}", grown)]
    rows = [
        (name, items, rate, write_size(each.bytes), each.bytes / items, each.expected_lost)
        for name, each in (named if grown != sized else named[:1])
    ]
    header = "filter", "pages", "error rate", "memory", "bytes a page", "expected lost"
    show(args, {"sized": asdict(sized), "grown": asdict(grown)}, table(rows, header))
    return 0


def size(items: int, error_rate: float, capacity: int) -> FilterInfo:
    """Return the state of a filter of this capacity and error rate when `items` are in it."""
    slices: list[SliceItems] = []
    left = items
    while left:
        spec = next_slice([spec for spec, _ in slices], capacity, error_rate)
        slices.append((spec, min(left, spec.capacity)))
        left -= slices[-1][1]
    return filter_info(
        slices,
        capacity=capacity,
        error_rate=error_rate,
        memory=sum(spec.blocks for spec, _ in slices) * BLOCK_BYTES,
        forgotten=0,
    )


def _needed(items: int, rate: float) -> int:
    return size(items, rate, items).bytes
