"""``scrapy bloom plan``: compute how much memory a number of pages takes."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from scrapy_bloom.commands.output import note, show, table
from scrapy_bloom.commands.project import Project
from scrapy_bloom.filter.info import FilterInfo, SliceItems, filter_info
from scrapy_bloom.filter.sizing import BLOCK_BYTES, next_slice
from scrapy_bloom.settings import CAPACITY, ERROR_RATE, WINDOW
from scrapy_bloom.values import read_capacity, read_error_rate, write_size, write_span

EXAMPLE = "10M -p 1e-6"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument(
        "items",
        metavar="N",
        nargs="?",
        help="how many pages: 10M, 1e9; by default BLOOM_CAPACITY of the settings",
    )
    parser.add_argument(
        "-p",
        "--error-rate",
        metavar="RATE",
        help="share of new pages to lose; by default BLOOM_ERROR_RATE of the settings",
    )


def run(args: Namespace, project: Project) -> int:
    """Print a filter of this capacity, and one that has grown to it from that of the settings.

    What is not given is read from the settings, which is said.
    """
    settings = project.settings
    items, rate = settings[CAPACITY], settings[ERROR_RATE]
    if args.items is not None:
        items = read_capacity("pages", args.items)
    if args.error_rate is not None:
        rate = read_error_rate("error_rate", args.error_rate)
    start = min(items, settings[CAPACITY])
    sized, grown = size(items, rate, items), size(items, rate, start)
    named = [(f"BLOOM_CAPACITY = {items:,}", sized), (f"grown from {start:,}", grown)]
    rows = [
        (name, items, rate, write_size(each.bytes), each.bytes / items, each.expected_lost)
        for name, each in (named if grown != sized else named[:1])
    ]
    header = "filter", "pages", "error rate", "memory", "bytes a page", "expected lost"
    show(args, {"sized": asdict(sized), "grown": asdict(grown)}, table(rows, header))
    used = (CAPACITY,) if args.error_rate is not None else (CAPACITY, ERROR_RATE)
    chosen = {each.setting: project.scrapys.get(each.setting) for each in used}
    read = [f"{name} = {value!r}" for name, value in chosen.items() if value is not None]
    if read:
        note(f"Read from the settings: {', '.join(read)}.")
    if window := settings[WINDOW]:
        note(f"With BLOOM_WINDOW = {write_span(window)} the pages are those of a window.")
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
