"""``scrapy bloom …``: one Scrapy command. Each of its sub-commands is a module.

Every call of ``scrapy`` imports this module, so it imports little but Scrapy's own base class.
A sub-command is imported when it is used.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Protocol, cast

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom.registry import COMMANDS


class SubCommand(Protocol):
    """What the module of a sub-command must have.

    Attributes:
        ARGUMENTS: its arguments, as the usage line shows them.
        SUMMARY: what it does, in a few words.
    """

    ARGUMENTS: str
    SUMMARY: str

    def add_options(self, parser: ArgumentParser) -> None:
        """Add the options of this sub-command. All sub-commands share one set of option names."""

    def run(self, args: Sequence[str], options: Namespace, settings: Settings) -> int:
        """Run the sub-command and return the exit code.

        :raises UsageError: if `args` are wrong.
        """


class BloomCommand(ScrapyCommand):
    """The command ``bloom``, as Scrapy sees it."""

    requires_crawler_process = False

    def syntax(self) -> str:
        """Return the text that the usage line shows after ``scrapy bloom``."""
        ways = [f"{name} {command.ARGUMENTS}" for name, command in _commands()]
        return f"{' | '.join(ways)} [options]"

    def short_desc(self) -> str:
        """Return the line for Scrapy's list of commands."""
        return "Look into duplicate filtering (scrapy-bloom)"

    def long_desc(self) -> str:
        """Return the text of ``scrapy bloom -h``."""
        return " ".join(f"{name}: {command.SUMMARY}." for name, command in _commands())

    def add_options(self, parser: ArgumentParser) -> None:
        """Add Scrapy's options and the options of all sub-commands."""
        super().add_options(parser)
        for _, command in _commands():
            command.add_options(parser)

    def run(self, args: list[str], opts: Namespace) -> None:
        """Run the sub-command that the first argument names."""
        if not args or args[0] not in COMMANDS:
            raise UsageError(f"give one of: {', '.join(COMMANDS)}", print_help=False)
        unknown = [arg for arg in args[1:] if arg.startswith("-")]
        if unknown:
            raise UsageError(f"unknown option {unknown[0]}", print_help=False)
        assert self.settings is not None  # noqa: S101 - Scrapy sets it before anything is called
        self.exitcode = _command(args[0]).run(args[1:], opts, self.settings)


def _commands() -> Iterator[tuple[str, SubCommand]]:
    for name in COMMANDS:
        yield name, _command(name)


def _command(name: str) -> SubCommand:
    return cast("SubCommand", import_module(COMMANDS[name]))
