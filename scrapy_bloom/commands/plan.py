"""``scrapy bloom plan``: compute how much memory a number of pages takes."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from scrapy_bloom.commands.output import show, table
from scrapy_bloom.commands.project import Project
from scrapy_bloom.filter.info import FilterInfo, SliceItems, filter_info
from scrapy_bloom.filter.sizing import BLOCK_BYTES, next_slice
from scrapy_bloom.values import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    read_capacity,
    read_error_rate,
    write_size,
)

EXAMPLE = "10M -p 1e-6"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("items", metavar="N", help="how many pages: 10M, 1e9")
    parser.add_argument(
        "-p",
        "--error-rate",
        metavar="RATE",
        default=DEFAULT_ERROR_RATE,
        help="share of new pages to lose",
    )


def run(args: Namespace, project: Project) -> int:  # noqa: ARG001 - as others
    """Print a filter of this capacity, and one that has grown to it from the default capacity."""
    items = read_capacity("pages", args.items)
    rate = read_error_rate("error_rate", args.error_rate)
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
