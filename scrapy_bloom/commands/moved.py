"""What was moved, as it is shown."""

from __future__ import annotations

from scrapy_bloom.commands.output import Output
from scrapy_bloom.options import write_size
from scrapy_bloom.tools.moving import Moved


def show(done: Moved, output: Output) -> None:
    """Write what was put somewhere, and what whoever uses it should know."""
    for warning in done.warnings:
        output.note(f"Note: {warning}")
    if output.as_json:
        output.json(done)
    output.done(
        f"{done.target}: {done.items:,} items in {write_size(done.bytes)}, {done.slices} slices,"
        f" error rate now {done.error_rate_now:.2g} (set: {done.error_rate:g})"
    )
