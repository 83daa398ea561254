"""The pages of docs that are made from the results."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from bench import claims
from bench.part import Part, Plot, Table
from bench.parts import PARTS
from bench.results import Result

PAGE = """\
# Benchmarks

scrapy-bloom compared with the alternatives. Lower is better.

{short}

{plots}

## Where we are slower

{behind}

## Method

The candidates of a table run in alternating order, and figures are medians of the repeats. CPU is
the processor time of the measured process. Absolute times belong to one machine and hour: compare
only ratios. Each part runs in a process of its own. Alternatives run as their own documentation
recommends.

`make bench` measures everything in about two hours on two cores and writes the figures; `make
bench-quick` takes a few minutes and writes nothing. [All measurements](reference/measurements.md)
has every table.

## Release criteria

No release is made unless these hold.

{held}
"""

ALL = """\
# All measurements

Written by `make bench`; [Benchmarks](../benchmarks.md) has the method. Measured on:

{setting}

{versions}
"""


def short_page(results: Mapping[str, Result]) -> str:
    """Return docs/benchmarks.md: what most readers want to know."""
    return PAGE.format(
        short=short(results),
        plots="\n\n".join(_picture(plot) for part in PARTS.values() for plot in part.plots),
        behind="\n".join(f"- {each}" for each in claims.behind(results)),
        held=held(results).strip(),
    )


def long_page(results: Mapping[str, Result]) -> str:
    """Return docs/reference/measurements.md: every table."""
    sections = [
        ALL.format(setting=_setting(results), versions=_wrapped(_versions(results))),
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
