"""docs/benchmarks.md and the short table of docs/index.md, made from the results."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from bench import claims
from bench.part import Part, Plot, Table
from bench.parts import PARTS
from bench.results import Result

INTRODUCTION = """\
# Benchmarks

What scrapy-bloom costs and keeps, beside what else there is. `make bench` measures all of it anew,
in about an hour on two cores, and writes this page, its plots and the short table of the home page
from `benchmarks/results.json`; `make bench-quick` takes a few minutes and writes neither;
`make bench-NAME` measures one part.

## Setting and method

Measured on:

{setting}

Candidates of one table run in turns within one run, in an order that is turned round each time;
what is shown is the median of the repeats, with the fastest and the slowest in brackets. "CPU" is
processor time of the process that is measured, "wall" is time that went by; no other program of
ours runs meanwhile, and where the machine was busy otherwise, the part says so. Each part runs in a
process of its own. Times belong to this machine and this hour: only ratios within one table are
worth quoting. What is compared with runs as its own documentation recommends for the purpose.
Versions stand with each part.
"""


def page(results: Mapping[str, Result]) -> str:
    """Return the page."""
    sections = [
        INTRODUCTION.format(setting=_setting(results)),
        "## What must hold\n\n" + held(results),
        "## Where we are behind\n\n" + "\n".join(f"- {x}" for x in claims.behind(results)) + "\n",
        *(_section(PARTS[name], results[name]) for name in PARTS if name in results),
    ]
    return "\n".join(sections)


def held(results: Mapping[str, Result]) -> str:
    """Return the table of what we promise of our figures."""
    rows = [
        (
            claim.text,
            f"{claim.value(results):.2f}",
            f"{claim.bound:g}",
            "yes" if claim.holds(results) else "**no**",
        )
        for claim in claims.CLAIMS
    ]
    return markdown(("what", "measured", "at most", "holds"), rows) + "\n"


def short(results: Mapping[str, Result]) -> str:
    """Return the short table of the home page."""
    return markdown(("what", "scrapy-bloom", "compared with", "ratio"), claims.short(results))


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _setting(results: Mapping[str, Result]) -> str:
    settings = {
        "{processor}, {cores} cores, {memory_gb} GB, {system}".format(**result["machine"])
        + f", Python {result['versions']['Python']}, {result['date']}"
        for result in results.values()
    }
    return "\n".join(f"- {setting}" for setting in sorted(settings))


def _section(part: Part, result: Result) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items() if k != "Python")
    blocks = [f"## {part.title}", result["method"].strip(), f"Versions: {versions}."]
    blocks += [_table(table, result) for table in part.tables]
    blocks += [_picture(plot) for plot in part.plots]
    findings = part.findings(result["tables"])
    blocks += ["\n".join(f"- {finding}" for finding in findings)] if findings else []
    took = f"`make bench-{part.name}` measures this part; it took {result['seconds']} s."
    cores = result["machine"]["cores"]
    if result.get("load", 0) > 2 * cores:
        took += (
            f" The machine was busy with other programs meanwhile: load average {result['load']} on"
            f" {cores} cores."
        )
    blocks += [took]
    return "\n\n".join(_wrapped(block) for block in blocks) + "\n"


def _picture(plot: Plot) -> str:
    """Return what shows a plot on GitHub and, by docs/conf.py, on the site, by light and dark."""
    return f"""\
<picture>
  <source media="(prefers-color-scheme: dark)" srcset="plots/{plot.name}-dark.svg">
  <img alt="{plot.title}" src="plots/{plot.name}.svg">
</picture>"""


def _table(table: Table, result: Result) -> str:
    rows = [[column.show(row) for column in table.columns] for row in result["tables"][table.name]]
    return f"**{table.title}**\n\n" + markdown([c.title for c in table.columns], rows)


def _wrapped(block: str) -> str:
    if block.startswith(("#", "|", "**", "<", "-")) or "\n\n" in block or "\n-" in block:
        return block
    return textwrap.fill(block, 100, break_long_words=False, break_on_hyphens=False)
