"""``scrapy bloom info``: fill level and owner of a filter, and the progress of its crawl."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from scrapy_bloom.commands.output import as_text, moment, show, table
from scrapy_bloom.commands.places import no_requests
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.target import add_target, line_for, target_of
from scrapy_bloom.crawl.account import Account, listed
from scrapy_bloom.values import counted, write_size, write_span

EXAMPLE = "job"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add_target(parser)
    parser.add_argument(
        "--finished", action="store_true", help="exit with 1 unless the crawl is finished"
    )


def run(args: Namespace, project: Project) -> int:
    """Print the most important facts, as JSON all; with --finished return 1 unless it is that."""
    facts = (target := target_of(project, args.target)).info()
    if args.finished and "account" not in facts:
        raise no_requests(target.name)
    if "last_run" in facts:
        facts["last_run"] = last_run(facts)
    known = {name: value for name, value in facts.items() if value not in (None, "", {})}
    show(args, known, table(_summary(facts, line_for(args, "queue", "--failed"))))
    return 1 if args.finished and facts["last_run"] != "finished" else 0


def _summary(facts: dict[str, Any], line: str) -> Iterator[tuple[str, str]]:
    """Yield (label, value) rows.

    :param line: the command that shows what has failed.
    """
    yield "target", facts["target"]
    yield from status(facts)
    yield from owner(facts)
    yield from progress(facts)
    if facts.get("account", {}).get("failed"):
        yield "failed list", line
    if hosts := facts.get("hosts"):
        yield "hosts", as_text(hosts)
    if "workers_alive" in facts:
        yield "workers", as_text(facts["workers_alive"])
    full = facts["items"] / facts["capacity"]
    yield "fill level", f"{full:.2%} of {counted(facts['capacity'], 'page')}; grows when it is full"
    if facts["window"]:
        generations = counted(facts["generations"], "generation")
        yield "window", f"{write_span(facts['window'])}, in {generations}"
    yield "memory", write_size(facts["bytes"])
    if "disk" in facts:
        yield "disk", write_size(facts["disk"])
    lost = facts["expected_lost"]
    yield "expected lost", "less than one page" if lost < 1 else f"about {lost:,.0f} pages"


def owner(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield whose crawl it is."""
    if spider := facts.get("spider"):
        project = facts.get("project")
        yield "spider", f"{spider}, project {project}" if project else spider


def last_run(facts: dict[str, Any]) -> str:
    """Return how the last run has ended, or that there is one.

    It is finished if ``start()`` is through, nothing waits or is in flight, and feeds have all
    items: then workers that are still there only have to leave.
    """
    run: str = facts.get("last_run", "")
    if not facts.get("through") or "account" not in facts:
        return run
    account = Account.of(facts["account"])
    left = account.waiting + account.in_flight + facts.get("due", 0)
    return run if left else "finished"


def status(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield how the last run has ended, or that a job is running."""
    if "written" in facts:
        run, written = last_run(facts), moment(facts["written"])
        yield ("status", f"{run}; last written {written}") if run else ("written", written)


def progress(facts: dict[str, Any], change: str = "") -> Iterator[tuple[str, str]]:
    """Yield what has become of pages, and what has to wait for a time.

    :param change: of what waits.
    """
    yield "marks", as_text(facts["items"])
    if "account" in facts:
        account = Account.of(facts["account"])
        if links := account.seen + account.pages:
            yield "duplicates", f"{account.seen / links:.0%} of {counted(links, 'link')}"
        yield "waiting", f"{account.waiting:,}{change}"
        yield "in flight", as_text(account.in_flight)
        yield "done", as_text(account.done)
        if account.unparsed:
            yield "unparsed", f"{account.unparsed:,} ({listed(account.decisions)})"
        if account.not_kept:
            yield "not kept", f"{account.not_kept:,} unparsed"
        if account.failed:
            yield "failed", f"{account.failed:,} ({listed(account.failures)})"
    if due := facts.get("due"):
        yield "due to feeds", f"up to {write_size(due)}: start the crawl again to append it"
    if later := facts.get("later"):
        due = facts.get("next_due")
        following = f", the next {moment(due)}" if due else ""
        yield "delayed", f"{counted(later, 'request')}{following}"
    if pauses := facts.get("paused"):
        until = (f"{host} until {moment(date)}" for host, date in pauses.items())
        yield "paused", ", ".join(until)
