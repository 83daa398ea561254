"""``scrapy bloom plan``: how large a filter gets."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.context import Context
from scrapy_bloom.commands.output import Cell
from scrapy_bloom.errors import SettingError
from scrapy_bloom.options import write_size
from scrapy_bloom.registry import LAYOUTS
from scrapy_bloom.tools.planning import Size, plan

EXAMPLE = "10M -p 1e-6"
SUMMARY = "compute items, error rate or memory from the other two"

_COLUMNS = ("", "items", "error rate", "memory", "bytes/item", "pages lost", "slices", "hashes")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument("items", metavar="N", nargs="?", help="how many pages: 10M, 1e9")
    parser.add_argument("-p", "--error-rate", metavar="RATE", help="share of new pages to lose")
    parser.add_argument("--memory", metavar="BYTES", help="as much as there is: 512M, 4G")
    parser.add_argument("--grown-from", metavar="N", default="1M", help="capacity to grow from")
    parser.add_argument("--backend", choices=("local", "redis"), default="local")
    parser.add_argument("--layout", choices=LAYOUTS, default="bitmap", help="of Redis")


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
