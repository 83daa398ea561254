"""Around every verb: arguments are read, errors become one line and an exit code."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NoReturn, Protocol, cast

from scrapy.settings import Settings

from scrapy_bloom.commands import VERBS
from scrapy_bloom.commands.output import Output
from scrapy_bloom.commands.project import Project
from scrapy_bloom.errors import BloomError, SettingError

CANNOT: Final = 2
"""Exit code of a verb that could not do what it was asked for."""

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as that of other programs."""


class Verb(Protocol):
    """What the module of a verb must have.

    Attributes:
        EXAMPLE: its arguments in a call that works.
    """

    EXAMPLE: str

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments of this verb; --json is there already."""

    def run(self, args: Namespace, project: Project, output: Output) -> int:
        """Run the verb and return the exit code: 0 for yes or done, 1 for no.

        :raises BloomError: if it cannot be done.
        """


class _ArgumentError(Exception):
    """Arguments cannot be read."""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _ArgumentError(message)


def load(name: str) -> Verb:
    """Import the module of a verb; three of them share one."""
    module = "pages" if name in ("contains", "add", "forget") else name
    return cast("Verb", import_module(f"scrapy_bloom.commands.{module}"))


def call(name: str, args: Sequence[str], settings: Settings) -> int:
    """Run a verb with these arguments; return the exit code."""
    verb, summary = load(name), VERBS[name]
    example = f"scrapy bloom {name} {verb.EXAMPLE}"
    parser = _Parser(
        prog=f"scrapy bloom {name}",
        description=f"{summary[:1].upper()}{summary[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(verb=name)
    verb.add_arguments(parser)
    try:
        read = parser.parse_intermixed_args(args)
    except _ArgumentError as error:
        return _cannot(name, f"{error}. Example: {example}")
    try:
        project = Project(settings, getattr(read, "spider", ""))
        code = verb.run(read, project, Output(as_json=read.json))
        sys.stdout.flush()
    except (BloomError, ValueError) as error:
        text = str(error)
        if isinstance(error, SettingError) and not text.endswith((".", "?")):
            text += f". Example: {example}"
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


def _cannot(name: str, text: str) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"scrapy bloom {name}: {text}\n")
    return CANNOT
