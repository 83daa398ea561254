"""``scrapy bloom info``: what a filter is, how full, and who uses it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.output import Output
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.target import add_target, target_of

EXAMPLE = "job"
SUMMARY = "show what a filter is, how full it is, and who uses it"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_target(parser)
    parser.add_argument(
        "--check", action="store_true", help="read all of it instead, and look for damage"
    )


def run(args: Namespace, project: Project, output: Output) -> int:
    """Print what is known of a filter; or what was found, and return 1 if something is wrong."""
    target = target_of(project, args.target)
    if args.check:
        found = [*target.check()]
        output.show([one._asdict() for one in found], found)
        return 1 if any(one.level == "bad" for one in found) else 0
    facts = target.info()
    rows = [(name.replace("_", " "), value) for name, value in facts.items() if name != "target"]
    output.show(facts, rows)
    return 0
