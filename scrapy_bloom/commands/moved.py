"""What `copy` and `merge` have in common: a filter goes to a place, and people are told."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from scrapy_bloom.commands.context import Context, add_key
from scrapy_bloom.commands.output import Output
from scrapy_bloom.options import write_size
from scrapy_bloom.tools.moving import Moved


def add_destination(parser: ArgumentParser, text: str) -> None:
    """Add the arguments that name where a filter goes."""
    parser.add_argument("target", metavar="DST", help=text)
    add_key(parser)
    parser.add_argument("--to-key", default="", metavar="KEY", help="key of DST, if it differs")


def move(how: Callable[..., Moved], source: object, args: Namespace, context: Context) -> int:
    """Put a filter to its destination, and print what is there now.

    :param how: ``tools.copy`` or ``tools.merge``; `source` is what it takes.
    """
    done = how(
        source,
        args.target,
        key=args.key,
        target_key=args.to_key,
        project=context.project,
        progress=context.output.progress,
    )
    show(done, context.output)
    return 0


def show(done: Moved, output: Output, *, beside: bool = False) -> None:
    """Write what was put somewhere, and what whoever uses it should know.

    :param beside: whether standard output has the filter itself.
    """
    for warning in done.warnings:
        output.note(f"Note: {warning}")
    text = (
        f"{done.target}: {done.items:,} items in {write_size(done.bytes)}, {done.slices} slices,"
        f" error rate now {done.error_rate_now:.2g} (set: {done.error_rate:g})"
    )
    if beside:
        output.note(text)
        return
    if output.as_json:
        output.json(done)
    output.done(text)
