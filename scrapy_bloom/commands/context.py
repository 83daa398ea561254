"""Around every sub-command: arguments are read, errors become one line and an exit code."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NoReturn, Protocol

from scrapy.settings import Settings

from scrapy_bloom.commands.output import Output
from scrapy_bloom.errors import BloomError, SettingError, StateError

if TYPE_CHECKING:
    from scrapy_bloom.commands.project import Project
    from scrapy_bloom.commands.target import Target

CANNOT: Final = 2
"""Exit code of a sub-command that could not do what it was asked for."""

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as that of other programs."""


class Context:
    """What a sub-command is run with.

    :param args: its arguments.
    :param settings: Scrapy's settings: those of the project, and those given with ``-s``.

    Attributes:
        scrapys: the settings.
        output: where results go.
    """

    def __init__(self, args: Namespace, settings: Settings) -> None:
        self.scrapys = settings
        self._spider: str = getattr(args, "spider", "") or ""
        self.output = Output(as_json=getattr(args, "json", False))

    @cached_property
    def project(self) -> Project:
        """The project, whose settings fill in what the arguments leave out."""
        from scrapy_bloom.commands.project import Project  # noqa: PLC0415 - not every one needs it

        return Project(self.scrapys, self._spider)

    def target(self, where: str | None, key: str = "") -> Target:
        """Return the place that a user names; None stands for that of the project."""
        return self.project.target(where, key)

    @contextmanager
    def stream(self, name: str) -> Iterator[BinaryIO]:
        """Open a file for reading bytes; ``-`` is standard input.

        :raises StateError: if it cannot be read.
        """
        if name == "-":
            yield sys.stdin.buffer
            return
        try:
            file = Path(name).open("rb")  # noqa: SIM115 - so that only opening it is explained
        except OSError as error:
            raise StateError(
                f"{name}: {error.strerror}. Give a file that this user can read, or - for standard"
                f" input."
            ) from error
        with file:
            yield file

    def confirm(self, question: str, *, yes: bool) -> bool:
        """Ask whether to go on.

        :param yes: whether the answer was given beforehand.
        :raises SettingError: if there is nobody to ask.
        """
        if yes:
            return True
        if not sys.stdin.isatty():
            raise SettingError(f"{question} There is nobody to ask here: give --yes")
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")


class SubCommand(Protocol):
    """What the module of a sub-command must have.

    Attributes:
        SUMMARY: what it does, in a few words.
        EXAMPLE: its arguments in a call that works.
    """

    SUMMARY: str
    EXAMPLE: str

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments of this sub-command; some that all share are there already."""

    def run(self, args: Namespace, context: Context) -> int:
        """Run the sub-command and return the exit code: 0 for yes or done, 1 for no.

        :raises BloomError: if it cannot be done.
        """


class _ArgumentError(Exception):
    """Arguments cannot be read."""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _ArgumentError(message)


def call(name: str, command: SubCommand, args: Sequence[str], settings: Settings) -> int:
    """Run a sub-command with these arguments; return the exit code."""
    parser = _Parser(
        prog=f"scrapy bloom {name}",
        description=f"{command.SUMMARY[:1].upper()}{command.SUMMARY[1:]}.",
        epilog=f"example:\n  scrapy bloom {name} {command.EXAMPLE}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    command.add_arguments(parser)
    try:
        read = parser.parse_intermixed_args(args)
    except _ArgumentError as error:
        return _cannot(name, f"{error}. Example: scrapy bloom {name} {command.EXAMPLE}")
    try:
        code = command.run(read, Context(read, settings))
        sys.stdout.flush()
    except (BloomError, ValueError) as error:
        text = str(error)
        if isinstance(error, SettingError) and not text.endswith("."):
            text += f". Example: scrapy bloom {name} {command.EXAMPLE}"
        return _cannot(name, text)
    except BrokenPipeError:
        # Whoever read has seen enough; nothing may be written at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        text = f"{error.filename or 'a file'}: {error.strerror}."
        if isinstance(error, PermissionError):
            text += " Give this user the right to it, and to the folder around it."
        return _cannot(name, text)
    except KeyboardInterrupt:
        _cannot(name, "interrupted")
        return INTERRUPTED
    return code


def add_target(parser: ArgumentParser) -> None:
    """Add the arguments that name a filter."""
    parser.add_argument("target", metavar="TARGET", nargs="?", help="the filter")
    add_key(parser)


def add_key(parser: ArgumentParser) -> None:
    """Add the arguments that complete a target."""
    parser.add_argument("--key", default="", metavar="KEY", help="key of a filter in Redis")
    parser.add_argument("--spider", default="", metavar="NAME", help="the spider of the filter")


def _cannot(name: str, text: str) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"scrapy bloom {name}: {text}\n")
    return CANNOT
