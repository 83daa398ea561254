"""``scrapy bloom plan``: how large a filter gets."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from scrapy_bloom.commands.context import Context
from scrapy_bloom.commands.output import Cell
from scrapy_bloom.errors import SettingError
from scrapy_bloom.options import write_size
from scrapy_bloom.registry import LAYOUTS
from scrapy_bloom.tools.planning import Plan, Size, curve, plan

EXAMPLE = "10M -p 1e-6"
SUMMARY = "compute items, error rate or memory from the other two"

_COLUMNS = ("", "items", "error rate", "memory", "bytes/item", "pages lost", "slices", "bits/item")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument("items", metavar="N", nargs="?", help="how many pages: 10M, 1e9")
    parser.add_argument("-p", "--error-rate", metavar="RATE", help="share of new pages to lose")
    parser.add_argument("--memory", metavar="BYTES", help="as much as there is: 512M, 4G")
    parser.add_argument("--grown-from", metavar="N", default="1M", help="capacity to grow from")
    parser.add_argument("--backend", choices=("local", "redis"), default="local")
    parser.add_argument("--layout", choices=LAYOUTS, default="bitmap", help="of Redis")
    parser.add_argument("--plot", metavar="FILE", help="draw memory and lost pages over items")


def run(args: Namespace, context: Context) -> int:
    """Print the plan, and draw it."""
    layout = args.layout
    if layout != "bitmap" and args.backend != "redis":
        raise SettingError(f"--layout {layout} is one of --backend redis")
    planned = plan(
        args.items, args.error_rate, args.memory, grown_from=args.grown_from, layout=layout
    )
    if args.plot:
        _draw(planned, layout, Path(args.plot))
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


def _draw(planned: Plan, layout: str, path: Path) -> None:
    """Draw both filters from a thousandth of the items to all."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - a large package, for this only
    except ModuleNotFoundError as error:
        raise SettingError(
            f"--plot needs the package {error.name}: pip install matplotlib"
        ) from None
    figure = Figure(figsize=(9, 4), layout="constrained")
    memory, lost = figure.subplots(1, 2)
    sized, grown = planned.sized, planned.grown
    for size, name in ((sized, "capacity set"), (grown, f"grown from {grown.capacity:,}")):
        points = curve(size.items, size.error_rate, size.capacity, layout)
        items = [point.items for point in points]
        memory.plot(items, [point.bytes / 1e6 for point in points], label=name)
        lost.plot(items, [point.lost for point in points], label=name)
    for axes, what in ((memory, "memory, MB"), (lost, "pages lost, expected")):
        axes.set(xlabel="pages", ylabel=what, xscale="log", yscale="log")
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    figure.suptitle(f"error rate {sized.error_rate:g}")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise SettingError(f"{path}: {error}") from error
