"""``scrapy bloom contains``: which pages a filter calls seen."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from scrapy_bloom.commands.context import Context
from scrapy_bloom.commands.lines import Batch, add_pages, lines_of, opened, split, tell_bad
from scrapy_bloom.commands.output import Output

EXAMPLE = "job http://example.com/"
SUMMARY = "tell which pages a filter calls seen, and their canonical form"

_WORDS = ("new", "seen")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_pages(parser)


def run(args: Namespace, context: Context) -> int:
    """Print for each page whether it is seen or new; return 0 if all are seen."""
    target, pages = split(args)
    all_seen = True
    with (
        opened(args, pages, context) as stream,
        context.target(target, args.key).asking() as marks,
    ):
        fingerprinter, warning = context.project.fingerprinter_for(marks.identity)
        if warning:
            context.output.note(warning)
        lines = lines_of(args, fingerprinter)
        with context.output.progress("asking", None, "pages", between=True) as told:
            for batch in lines.of_stream(stream):
                seen = marks.contains_many(batch.fingerprints)
                _show(context.output, batch, seen)
                told(len(seen))
                all_seen = all_seen and all(seen)
    tell_bad(lines, context.output)
    return 0 if all_seen and not lines.bad else 1


def _show(output: Output, batch: Batch, seen: Sequence[bool]) -> None:
    if output.as_json:
        rows = zip(batch.texts, batch.fingerprints, batch.canonical, seen, strict=True)
        for text, fingerprint, canonical, is_seen in rows:
            output.json_line(
                {
                    "page": text,
                    "seen": is_seen,
                    "canonical": canonical,
                    "fingerprint": fingerprint.hex(),
                }
            )
        return
    output.lines(
        "".join(
            f"{_WORDS[is_seen]}\t{text}\t{canonical}\n"
            for text, canonical, is_seen in zip(batch.texts, batch.canonical, seen, strict=True)
        )
    )
