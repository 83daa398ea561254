"""The pages of docs that are made from the results."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bench import claims
from bench.part import Part, Plot, Table
from bench.parts import PARTS
from bench.results import Result

PAGE = """\
# Benchmarks

scrapy-bloom compared with the alternatives: medians of alternating runs.

{short}

[All measurements](measurements.md) has every table with its method.

## Where we are slower

{behind}

{sections}

## Method

Candidates run in alternating order, each part in a process of its own, alternatives as their own
documentation recommends; figures are medians. CPU is the processor time of the measured process.
Absolute times belong to one machine and hour: compare only ratios.{pair}

`make bench` measures everything in about 40 minutes on two cores.
"""

LESS = "Less is better."
SECTIONS = {
    "kills": (
        "Fewer lost pages and items are better.",
        "kills",
        (),
    ),
    "outage": (
        "Fewer lost pages are better.",
        "outage",
        (),
    ),
    "polite": (
        "Closer to 2.00 requests/s is better, the configured pace; then, more pages/s.",
        "pace",
        (),
    ),
    "redis-crawl": (
        LESS,
        "crawls",
        ("workers", "delay", "name", "seconds_ratio", "cpu_ratio", "server_ratio", "trips"),
    ),
    "core": (LESS, "core", ("name", "cpu", "bytes_per_item")),
}
"""What docs/benchmarks.md shows of a part: what is better, and of one of its tables these columns;
none if the plot shows it."""

ALL = """\
---
orphan: true
---

# All measurements

Written by `make bench`; [Benchmarks](benchmarks.md) has the method. Measured on:

{setting}

{versions}

## Release criteria

No release is made unless these hold.

{held}
"""


def short_page(results: Mapping[str, Result]) -> str:
    """Return docs/benchmarks.md: what most readers want to know."""
    return PAGE.format(
        short=short(results),
        behind="\n".join(
            textwrap.fill(f"- {each}", 100, subsequent_indent="  ", break_on_hyphens=False)
            for each in claims.behind(results)
        ),
        sections="\n\n".join(_extract(PARTS[name], results[name]) for name in SECTIONS),
        pair=_pair(results["redis-crawl"]["tables"]["server"][0].get("pair")),
    )


def _pair(seconds: float | None) -> str:
    """Return what a system call costs where it was measured, if that was."""
    if seconds is None:
        return ""
    took = f"There\na send and a receive on a socket pair took {seconds * 1e6:.1f} µs"
    return f" {took}: where they take longer, saved round\ntrips count for more."


def long_page(results: Mapping[str, Result]) -> str:
    """Return every table with its method: a page of the site only."""
    sections = [
        ALL.format(
            setting=_setting(results), versions=_wrapped(_versions(results)), held=held(results)
        ),
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
    return markdown(("what", "measured", "at most", "holds"), rows)


def short(results: Mapping[str, Result]) -> str:
    """Return the short table of the home page."""
    return markdown(("what", "scrapy-bloom", "compared with", "better"), claims.short(results))


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


def _versions(results: Mapping[str, Result]) -> str:
    found = {
        f"{package} {version}".lower(): f"{package} {version}"
        for result in results.values()
        for package, version in result["versions"].items()
        if package != "Python"
    }
    return f"Versions: {', '.join(found[key] for key in sorted(found))}."


def _section(part: Part, result: Result) -> str:
    blocks = [f"## {part.title}", part.method.strip()]
    blocks += [_table(table, result) for table in part.tables]
    took = f"`make bench-{part.name}` took {result['seconds']} s"
    cores = result["machine"]["cores"]
    if result.get("load", 0) > 2 * cores:
        took += f", on a busy machine (load average {result['load']} on {cores} cores)"
    return "\n\n".join(_wrapped(block) for block in [*blocks, f"{took}."]) + "\n"


def _extract(part: Part, result: Result) -> str:
    """Return a part as docs/benchmarks.md shows it."""
    better, name, keys = SECTIONS[part.name]
    (table,) = (table for table in part.tables if table.name == name)
    columns = {column.key: replace(column, spread=False) for column in table.columns}
    shown = replace(table, columns=tuple(columns[key] for key in keys))
    plots = [_picture(plot) for plot in part.plots]
    tables = [_table(shown, result)] if keys else []
    anchor = re.sub(r"[^\w -]", "", part.title.lower()).replace(" ", "-")
    how = f"[How it was measured](measurements.md#{anchor})."
    return "\n\n".join([f"## {part.title}", _wrapped(f"{better} {how}"), *plots, *tables])


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
