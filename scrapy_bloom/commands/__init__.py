"""``scrapy bloom …``: one Scrapy command. Each of its sub-commands is a module.

Every call of ``scrapy`` imports this module, so it imports little but Scrapy's own base class.
A sub-command is imported when it is used.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from importlib import import_module
from typing import TYPE_CHECKING, cast

from scrapy.commands import ScrapyCommand

if TYPE_CHECKING:
    from scrapy_bloom.commands.runner import SubCommand


NAMES = ("plan", "info", "contains", "add", "forget", "copy", "delete", "queue", "canon")
"""The sub-commands. Each is a module here, and a :class:`~runner.SubCommand`."""


class BloomCommand(ScrapyCommand):
    """The command ``bloom``, as Scrapy sees it."""

    requires_crawler_process = False
    default_settings = {"LOG_ENABLED": False}  # noqa: RUF012 - as Scrapy declares it

    def syntax(self) -> str:
        """Return the text that the usage line shows after ``scrapy bloom``."""
        return "SUBCOMMAND [arguments]"

    def short_desc(self) -> str:
        """Return the line for Scrapy's list of commands."""
        return "Look into duplicate filtering (scrapy-bloom)"

    def add_options(self, parser: ArgumentParser) -> None:
        """Add Scrapy's options. Each sub-command reads its own from what is left."""
        super().add_options(parser)
        # In the place of Scrapy's, which knows no sub-commands.
        parser.add_argument("-h", "--help", action="store_true", help="show help, also of one")

    def run(self, args: list[str], opts: Namespace) -> None:
        """Run the sub-command that the first argument names."""
        name, *rest = args or [""]
        if name not in NAMES:
            if opts.help:
                sys.stdout.write(_overview())
                return
            sys.stderr.write(f"scrapy bloom: give one of: {', '.join(NAMES)}\n")
            self.exitcode = 2
            return
        if opts.help:
            rest = ["--help"]
        assert self.settings is not None  # noqa: S101 - Scrapy sets it before anything is called
        try:
            # Imported only here: see the top of this file.
            from scrapy_bloom.commands.runner import call  # noqa: PLC0415

            self.exitcode = call(name, load(name), rest, self.settings)
        except KeyboardInterrupt:  # before the sub-command has begun
            sys.stderr.write(f"scrapy bloom {name}: interrupted\n")
            self.exitcode = 130


def load(name: str) -> SubCommand:
    """Import a sub-command."""
    return cast("SubCommand", import_module(f"{__name__}.{name}"))


def _overview() -> str:
    width = max(map(len, NAMES))
    lines = [f"  {name:<{width}}  {load(name).SUMMARY}" for name in NAMES]
    return "\n".join(["usage: scrapy bloom SUBCOMMAND [arguments]", "", *lines, "", _TARGETS, ""])


_TARGETS = """\
A TARGET is a job directory, a file that `copy` has written, or the URL of a Redis server with #KEY
at its end. Without one the project's settings name it, and --spider NAME.
`scrapy bloom SUBCOMMAND -h` shows its arguments and an example."""
