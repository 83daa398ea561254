"""``scrapy bloom delete``: a filter, when nobody uses it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.context import Context, add_target
from scrapy_bloom.commands.target import Information
from scrapy_bloom.errors import StateError

EXAMPLE = "job --yes"
SUMMARY = "delete a filter that no crawl uses, with the requests of our scheduler beside it"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_target(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--leftovers", action="store_true", help="only what lost filters have left in Redis"
    )


def run(args: Namespace, context: Context) -> int:
    """Ask, and delete; return 1 if the answer was no."""
    output, target = context.output, context.target(args.target, args.key)
    if args.leftovers:
        output.done(f"{target.delete_leftovers():,} keys deleted")
        return 0
    try:
        question = f"Delete {_described(target.info())}?"
    except StateError:
        left = target.leftovers()
        if target.exists() or not left:
            raise
        question = (
            f"There is no filter at {target.name}. Delete the {len(left):,} keys that one has left,"
            f" with all requests that wait there?"
        )
    if not context.confirm(question, yes=args.yes):
        return 1
    if target.exists():
        target.delete(output)
    else:
        target.delete_leftovers()
    if output.as_json:
        output.json({"deleted": target.name})
    output.done(f"{target.name}: deleted")
    return 0


def _described(found: Information) -> str:
    text = f"the filter at {found.target} with {found.filter.items:,} pages"
    if found.waiting is not None:
        text += f" and the {found.waiting:,} requests that wait there"
    return text
