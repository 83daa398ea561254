"""Runs a verb: parses its arguments, and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from scrapy.settings import Settings

from scrapy_bloom.commands import VERBS
from scrapy_bloom.commands.output import note
from scrapy_bloom.commands.project import Project
from scrapy_bloom.errors import BloomError


def load(name: str) -> Any:
    """Import the module of a verb; two of them share one.

    It has ``EXAMPLE``, the arguments of a working call, and ``add_arguments(parser)``. Its
    ``run(args, project)`` returns the exit code, 0 for yes or done and 1 for no, and raises
    :class:`BloomError` if it fails.
    """
    module = "pages" if name in ("add", "forget") else name
    return import_module(f"scrapy_bloom.commands.{module}")


def call(name: str, args: Sequence[str], settings: Settings) -> int:
    """Run a verb with these arguments; return the exit code: 2 for an error, 130 after Ctrl-C.

    :raises SystemExit: if the arguments are invalid, or ask for help, which is shown.
    """
    verb, summary = load(name), VERBS[name]
    parser = ArgumentParser(
        prog=f"scrapy bloom {name}",
        description=f"{summary[:1].upper()}{summary[1:]}.",
        epilog=f"Scrapy's own options work, too, such as -s NAME=VALUE for a setting.\n\n"
        f"example:\n  scrapy bloom {name} {verb.EXAMPLE}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--spider", default="", metavar="NAME", help="the spider of the filter")
    parser.set_defaults(verb=name)
    verb.add_arguments(parser)
    read = parser.parse_intermixed_args(args)
    try:
        project = Project(settings, read.spider)
        code: int = verb.run(read, project)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does. Nothing may be flushed at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (BloomError, ValueError, OSError) as error:
        return _exit(name, str(error), 2)
    except (ImportError, NameError) as error:
        return _exit(name, f"a class that the settings name cannot be loaded: {error}", 2)
    except KeyboardInterrupt:
        return _exit(name, "interrupted", 130)
    return code


def _exit(name: str, text: str, code: int) -> int:
    note(f"scrapy bloom {name}: {text}")
    return code
