"""``scrapy bloom …``: one Scrapy command with sub-commands, a module each.

Every call of ``scrapy`` imports this module, so it imports nothing but Scrapy's own base class;
a sub-command is imported when it is asked for.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib import import_module
from typing import Final, Protocol, cast

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError
from scrapy.settings import Settings


class SubCommand(Protocol):
    """What the module of a sub-command has."""

    def add_options(self, parser: ArgumentParser) -> None:
        """Add the sub-command's own options; those of all sub-commands share one namespace."""

    def run(self, args: Sequence[str], options: Namespace, settings: Settings) -> int:
        """Do the work and return the exit code.

        :raises UsageError: if `args` are not what it takes.
        """


SUB_COMMANDS: Final = {
    "canon": ("URL [URL ...]", "show how URLs are made canonical, and which are one page"),
}
"""Name of each sub-command, which is that of its module, with its arguments and what it does."""


class BloomCommand(ScrapyCommand):
    """The command that Scrapy sees."""

    requires_crawler_process = False

    def syntax(self) -> str:
        """Return what stands after ``scrapy bloom``."""
        ways = [f"{name} {args}" for name, (args, _) in SUB_COMMANDS.items()]
        return f"{' | '.join(ways)} [options]"

    def short_desc(self) -> str:
        """Return the line in Scrapy's list of commands."""
        return "Look into duplicate filtering (scrapy-bloom)"

    def long_desc(self) -> str:
        """Return the text of ``scrapy bloom -h``."""
        return " ".join(f"{name}: {what}." for name, (_, what) in SUB_COMMANDS.items())

    def add_options(self, parser: ArgumentParser) -> None:
        """Add Scrapy's options and those of all sub-commands."""
        super().add_options(parser)
        for name in SUB_COMMANDS:
            _module(name).add_options(parser)

    def run(self, args: list[str], opts: Namespace) -> None:
        """Run the sub-command that the first argument names."""
        if not args or args[0] not in SUB_COMMANDS:
            raise UsageError(f"give one of: {', '.join(SUB_COMMANDS)}", print_help=False)
        unknown = [arg for arg in args[1:] if arg.startswith("-")]
        if unknown:
            raise UsageError(f"there is no option {unknown[0]}", print_help=False)
        assert self.settings is not None  # noqa: S101 - Scrapy sets it before anything is called
        self.exitcode = _module(args[0]).run(args[1:], opts, self.settings)


def _module(name: str) -> SubCommand:
    return cast("SubCommand", import_module(f"{__name__}.{name}"))
