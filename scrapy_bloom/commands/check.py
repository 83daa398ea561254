"""``scrapy bloom check``: read all of a filter and tell what is wrong."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.context import Context, add_target
from scrapy_bloom.tools.checking import check

EXAMPLE = "job"
SUMMARY = "read all of a filter, and tell what is wrong and what to do about it"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_target(parser)


def run(args: Namespace, context: Context) -> int:
    """Print what was found; return 1 if something is wrong."""
    output = context.output
    found = check(args.target, key=args.key, project=context.project, progress=output.progress)
    if output.as_json:
        output.json(found)
    else:
        output.table(
            "",
            ("", "what", "found", "what to do"),
            [(one.level, one.what, one.found, one.advice) for one in found],
        )
    return 1 if any(one.level == "bad" for one in found) else 0
