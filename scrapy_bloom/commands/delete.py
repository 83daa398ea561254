"""``scrapy bloom delete``: a filter, when nobody uses it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.context import Context, add_target
from scrapy_bloom.errors import StateError
from scrapy_bloom.tools.information import Information, info
from scrapy_bloom.tools.moving import delete, delete_leftovers
from scrapy_bloom.tools.resolve import target_of

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
    output, project = context.output, context.project
    if args.leftovers:
        count = delete_leftovers(
            args.target, key=args.key, project=project, progress=output.progress
        )
        output.done(f"{count:,} keys deleted")
        return 0
    try:
        found = info(args.target, key=args.key, project=project)
    except StateError:
        target = target_of(args.target, key=args.key, project=project)
        left = target.leftovers()
        if not left:
            raise
        question = (
            f"There is no filter at {target.name}. Delete the {len(left):,} keys that one has left,"
            f" with all requests that wait there?"
        )
        if not context.confirm(question, yes=args.yes):
            return 1
        count = target.delete_leftovers(output.progress)
        if output.as_json:
            output.json({"deleted": target.name})
        output.done(f"{target.name}: {count:,} keys deleted, which a filter had left")
        return 0
    if not context.confirm(f"Delete {_described(found)}?", yes=args.yes):
        return 1
    delete(args.target, key=args.key, project=project, progress=output.progress)
    if output.as_json:
        output.json({"deleted": found.target})
    output.done(f"{found.target}: deleted")
    return 0


def _described(found: Information) -> str:
    text = f"the filter at {found.target} with {found.filter.items:,} pages"
    if found.waiting is not None:
        text += f" and the {found.waiting:,} requests that wait there"
    return text
