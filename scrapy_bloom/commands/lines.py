"""URLs and fingerprints on the command line, in files and pipes, for the sub-commands on pages."""

from __future__ import annotations

import io
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter
from scrapy_bloom.commands.context import Context, add_key
from scrapy_bloom.commands.output import Output
from scrapy_bloom.errors import SettingError
from scrapy_bloom.storage import seen_file
from scrapy_bloom.tools.lines import Batch, Lines, SetInRedis
from scrapy_bloom.tools.marking import adding, check_marks
from scrapy_bloom.tools.resolve import SCHEMES, target_of
from scrapy_bloom.tools.target import Adder

_HEX = re.compile(r"(?:[0-9a-fA-F]{2}){8,}")


def add_pages(parser: ArgumentParser) -> None:
    """Add the arguments that name a filter and pages."""
    parser.add_argument(
        "pages",
        metavar="[TARGET] URL",
        nargs="*",
        help="the filter, and URLs; - for those on standard input, one a line",
    )
    add_key(parser)
    parser.add_argument(
        "--fingerprint", action="store_true", help="fingerprints in hexadecimal, no URLs"
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="read URLs or fingerprints, one a line, a requests.seen, or a set: redis://HOST#KEY",
    )
    parser.add_argument("--strict", action="store_true", help="stop at the first bad line")


def split(args: Namespace) -> tuple[str | None, list[str]]:
    """Return the target, None for that of the project, and the pages."""
    first, *rest = args.pages or [""]
    if not first or first == "-" or _is_page(first, hexadecimal=args.fingerprint):
        return None, [one for one in args.pages if one]
    return first, rest


def lines_of(args: Namespace, fingerprinter: CanonicalFingerprinter) -> Lines:
    """Return what reads the pages."""
    return Lines(
        fingerprinter,
        "fingerprints" if args.fingerprint else "auto",
        strict=args.strict,
        seen=Path(args.file or "").name == seen_file.NAME,
    )


@contextmanager
def opened(args: Namespace, pages: list[str], context: Context) -> Iterator[BinaryIO]:
    """Open the pages as one stream of lines."""
    with ExitStack() as stack:
        if "-" in pages and pages != ["-"]:
            raise SettingError("give URLs, or - for those on standard input, not both")
        if args.file and pages:
            raise SettingError("give URLs or a --file with some, not both")
        if (args.file or "").startswith(SCHEMES):
            if not args.fingerprint:
                raise SettingError(
                    f"{args.file.partition('#')[2]}: a set in Redis has fingerprints. scrapy-redis"
                    f" makes them in a way of its own, and then they mean nothing to this filter."
                    f" --fingerprint takes them as they are"
                )
            yield cast("BinaryIO", SetInRedis(args.file))
        elif args.file:
            yield stack.enter_context(context.stream(args.file))
        elif pages == ["-"]:
            yield stack.enter_context(context.stream("-"))
        elif not pages:
            raise SettingError("give URLs, a --file with some, or - for standard input")
        else:
            yield io.BytesIO("\n".join(pages).encode())


@dataclass(frozen=True)
class Counted:
    """What was done to pages.

    Attributes:
        known: how many the filter had.
        unknown: how many it had not.
        bad: how many lines were bad, and so left out.
    """

    known: int
    unknown: int
    bad: int


def on_each(
    args: Namespace,
    context: Context,
    what: str,
    do: Callable[[Adder, Batch], list[bool]],
    *,
    make: bool = False,
) -> Counted:
    """Open a filter to add to it, do something to all pages, and tell which lines were bad.

    :param what: what is done, for the progress bar.
    :param do: does it to a batch; returns for each page whether the filter had it.
    :param make: whether to make a filter where there is none.
    """
    where, pages = split(args)
    target = target_of(where, key=args.key, project=context.project)
    known = unknown = 0
    with (
        opened(args, pages, context) as stream,
        adding(target, project=context.project, make=make) as (adder, fingerprinter),
    ):
        lines = lines_of(args, fingerprinter)
        with context.output.progress(what, None, "pages") as told:
            for batch in lines.of_stream(stream):
                if make and not known + unknown and (lines.seen or isinstance(stream, SetInRedis)):
                    check_marks(args.file or "-", target)
                found = do(adder, batch)
                known += sum(found)
                unknown += len(found) - sum(found)
                told(len(found))
    tell_bad(lines, context.output)
    return Counted(known, unknown, lines.bad)


def tell_bad(lines: Lines, output: Output) -> None:
    """Tell which lines were bad."""
    for bad in lines.shown:
        output.note(f"line {bad.number:,}: {bad.text!r}: {bad.reason}")
    if lines.bad:
        output.note(f"{lines.bad:,} of {lines.read:,} lines were bad and left out")


def _is_page(text: str, *, hexadecimal: bool) -> bool:
    if text.startswith(SCHEMES) or Path(text).exists():
        return False
    return "://" in text or (hexadecimal and _HEX.fullmatch(text) is not None)
