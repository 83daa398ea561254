"""``scrapy bloom VERB …``: one Scrapy command with nine verbs, each a module here.

Every call of ``scrapy`` imports this module, so it imports little but Scrapy's own base class.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from scrapy.commands import ScrapyCommand

VERBS = {
    "plan": "compute how much memory a number of pages takes",
    "info": "show owner, fill level and progress of a crawl",
    "top": "watch a crawl: pages a second, what fails, and its workers and hosts",
    "why": "show what became of pages: waiting, in flight, failed and why, or done",
    "add": "mark pages as seen, but not list pages: what they link to would not be found",
    "forget": "make pages eligible again",
    "queue": "show waiting, failed and unparsed requests; put them back or accept them",
    "delete": "delete a filter and its requests, unless a crawl uses them",
    "canon": "show canonical URLs, and which are one page",
}

OVERVIEW = """\
usage: scrapy bloom VERB [arguments]

{verbs}

A TARGET is a job directory, a bloom.sqlite file, or the URL of a Redis server with #KEY at its end.
Without one, the project's settings and --spider NAME select it.
'scrapy bloom VERB -h' shows a verb's arguments and an example.
"""


class BloomCommand(ScrapyCommand):
    """The command ``bloom``, as Scrapy sees it."""

    requires_crawler_process = False
    default_settings = {"LOG_ENABLED": False}  # noqa: RUF012 - as Scrapy declares it

    def syntax(self) -> str:
        """Return the text that the usage line shows after ``scrapy bloom``."""
        return "VERB [arguments]"

    def short_desc(self) -> str:
        """Return the line for Scrapy's list of commands."""
        return "Inspect and change duplicate filters (scrapy-bloom)"

    def add_options(self, parser: ArgumentParser) -> None:
        """Add Scrapy's options. Each verb reads its own from what is left."""
        super().add_options(parser)
        # Instead of Scrapy's, which knows no verbs.
        parser.add_argument("-h", "--help", action="store_true", help="show help, or a verb's")

    def run(self, args: list[str], opts: Namespace) -> None:
        """Run the verb that the first argument names; without one, show all verbs."""
        if not args:
            lines = (f"  {name:<10}{summary}" for name, summary in VERBS.items())
            sys.stdout.write(OVERVIEW.format(verbs="\n".join(lines)))
            return
        verb, *rest = args
        if verb not in VERBS:
            sys.stderr.write(
                f"scrapy bloom: expected a verb, found {verb!r}. Verbs: {', '.join(VERBS)}.\n"
            )
            self.exitcode = 2
            return
        assert self.settings is not None  # Scrapy sets it before anything is called
        # Imported only here: see the top of this file.
        from scrapy_bloom.commands.runner import call

        self.exitcode = call(verb, ["--help"] if opts.help else rest, self.settings)
