"""The tables of docs, made from the code and the results that they describe.

``python docs/tables.py`` says whether the files have them as they are now, ``--write`` puts them
there. Each stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; the benchmarks are a page
of their own. What an image of a plot says in words is made from the results, too.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

from scrapy_bloom.canonical.names import TRACKING_PARAMS
from scrapy_bloom.canonical.steps import STEPS
from scrapy_bloom.commands import VERBS
from scrapy_bloom.commands.plan import size
from scrapy_bloom.filter.sizing import next_slice
from scrapy_bloom.settings import OPTIONS, Option
from scrapy_bloom.stats import STATS
from scrapy_bloom.values import DEFAULT_CAPACITY, DEFAULT_ERROR_RATE, write_size

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))
from bench import page, results
from bench.fleet import BESIDE
from bench.page import markdown

TEN_MILLION = 10_000_000
SCRAPY_SET_BYTES = 86.6  # of one 20-byte fingerprint in a set, as `make bench-core` measures


GROUPS = {
    "Filter": ("CAPACITY", "ERROR_RATE", "BACKEND"),
    "Long crawls": ("WINDOW", "COMMIT_SYNC", "RETRY_FAILED", "RETRY_AFTER"),
    "Redis": ("REDIS_", "ON_BACKEND_ERROR"),
    "URLs": ("CANONICAL",),
}
"""The groups of settings, each with how their names begin."""


def grouped() -> dict[str, list[Option]]:
    """Return the settings by the titles of their groups."""
    left, groups = list(OPTIONS), {}
    for title, beginnings in GROUPS.items():
        names = tuple(f"BLOOM_{beginning}" for beginning in beginnings)
        groups[title] = [each for each in left if each.setting.startswith(names)]
        left = [each for each in left if each not in groups[title]]
    if left:
        sys.exit(f"No group has {', '.join(option.setting for option in left)}.")
    return groups


def settings_list() -> str:
    """Return each setting below a heading of its own, with its default."""
    blocks = []
    for title, options in grouped().items():
        blocks.append(f"## {title}")
        for option in options:
            said = f"{option.meaning} Default: `{option.default!r}`."
            blocks += [f"### `{option.setting}`", wrapped(said)]
    return "\n\n".join(blocks)


def stats_table() -> str:
    """Return every stat with its meaning."""
    return markdown(("stat", "meaning"), [(f"`{s.key}`", s.meaning) for s in STATS])


def sizing_table() -> str:
    """Return memory and expected loss of crawls of many sizes."""
    rows = []
    for pages in (1_000_000, 10_000_000, 100_000_000, 1_000_000_000):
        for error_rate in (1e-6, 1e-12):
            sized = size(pages, error_rate, pages)
            grown = size(pages, error_rate, DEFAULT_CAPACITY)
            rows.append(
                (
                    f"{pages:,}",
                    f"{error_rate:g}",
                    write_size(sized.bytes),
                    f"{sized.expected_lost:,.2f}",
                    write_size(grown.bytes),
                    f"{grown.expected_lost:,.2f}",
                    write_size(pages * SCRAPY_SET_BYTES),
                )
            )
    return markdown(
        (
            "pages",
            "error rate",
            "memory, capacity set",
            "pages lost",
            "memory, grown from the default",
            "pages lost",
            "Scrapy's set",
        ),
        rows,
    )


def growth_text() -> str:
    """Return in words what a filter takes that nobody has sized."""
    capacity, slices, sizes = DEFAULT_CAPACITY, [], []
    while (full := sum(one.capacity for one in slices)) < TEN_MILLION:
        sizes += [size(n, DEFAULT_ERROR_RATE, capacity).bytes / n for n in (full, full + 1) if full]
        slices.append(next_slice(slices, capacity, DEFAULT_ERROR_RATE))
    times = (slices[0].capacity + slices[1].capacity) / capacity
    return wrapped(
        f"You need not set anything. The filter has room for {capacity:,} requests and grows as"
        f" often as it must, each time to {times:.1f} times its size; up to ten million pages it"
        f" then takes {min(sizes):.0f} to {max(sizes):.0f} bytes per page, most just after it has"
        " grown. If you know the number of pages, set `BLOOM_CAPACITY`: a filter of the right size"
        " needs less memory and time."
    )


def beside_text() -> str:
    """Return in words what our filter costs under scrapy-redis's scheduler."""
    rows = results.read()["redis-crawl"]["tables"]["crawls"]
    ours = [row for row in rows if row["name"] == BESIDE]
    near, far = (
        max(row["seconds_ratio"] for row in ours if row["delay"] == delay) for delay in (0, 0.005)
    )
    busy = max(row["server_ratio"] for row in ours)
    memory = write_size(size(DEFAULT_CAPACITY, DEFAULT_ERROR_RATE, DEFAULT_CAPACITY).bytes)
    return wrapped(
        f"A million pages take {memory} instead of some 80, but a kill still loses what the queue"
        " had handed out; see [One filter, other"
        " queues](many-workers.md#one-filter-other-queues)."
        " [Compared with scrapy-redis's own filter](../measurements.md), a page took up to"
        f" {near:.2f} times as long, and {far:.2f} times with Redis 5 ms away; Redis used up to"
        f" {busy:.2f} times as much CPU."
    )


def wrapped(text: str) -> str:
    """Return a paragraph in lines."""
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def steps_table() -> str:
    """Return every step with an example."""
    rows = [
        (f"`{step.name}` ({step.tier})", step.doc, f"{code(step.before)} → {code(step.after)}")
        for step in STEPS
    ]
    return markdown(("step (level)", "what it does", "example"), rows)


def tracking_list() -> str:
    """Return the names of tracking parameters."""
    return ", ".join(f"`{name}`" for name in TRACKING_PARAMS)


def code(url: str) -> str:
    """Return a URL as it is written in code."""
    for char, shown in (("\n", "\\n"), ("\t", "\\t")):
        url = url.replace(char, shown)
    return f"`{url}`"


def matrix_text() -> str:
    """Return in words on which versions `make matrix` has stopped, killed and resumed crawls."""
    rows = json.loads((ROOT / "docs" / "matrix.json").read_text(encoding="utf-8"))
    days = " and ".join(sorted({r["date"] for r in rows}))
    pythons = ", ".join(dict.fromkeys(r["python"] for r in rows))
    scrapys = ", ".join(sorted({r["scrapy"] for r in rows}))
    failed = [
        f"{column} with Scrapy {r['scrapy']} on Python {r['python']}"
        for r in rows
        for column, result in r["columns"].items()
        if result != "yes"
    ]
    return wrapped(
        f"Run on {days}: {'; '.join(rows[0]['columns'])}. On {len(rows)} pairs of Scrapy"
        f" {scrapys} and"
        f" Python {pythons}. Failed: {'; '.join(failed) or 'none'}."
    )


def verbs_table() -> str:
    """Return every verb of `scrapy bloom` with what it does."""
    return markdown(("verb", "what it does"), [(f"`{name}`", text) for name, text in VERBS.items()])


def rows_of(part: str, table: str, **wanted: object) -> list[dict[str, Any]]:
    """Return the rows of a table of results that have certain values."""
    rows: list[dict[str, Any]] = results.read()[part]["tables"][table]
    return [row for row in rows if wanted.items() <= row.items()]


def lost_text(part: str, what: str) -> str:
    """Return in words how many pages crawls have lost."""
    ours, theirs = (rows_of(part, part, name=name)[0] for name in ("scrapy-bloom", "Scrapy's own"))
    return (
        f"Pages lost by {what}: {ours['lost']:,} of {ours['pages']:,} with scrapy-bloom,"
        f" {theirs['lost']:,} with Scrapy's own scheduler"
    )


def polite_text() -> str:
    """Return in words how often several workers have asked one host."""

    def busiest(name: str) -> list[str]:
        return [f"{row['busiest']:.1f}" for row in rows_of("polite", "pace", name=name, hosts=20)]

    *first, last = busiest("scrapy-redis")
    ours = sorted({*busiest("scrapy-bloom")})
    return (
        f"Requests a second to the busiest of 20 hosts with 1, 2, 4 and 8 workers: with"
        f" scrapy-bloom {' to '.join(ours)} each time, as DOWNLOAD_DELAY says; with scrapy-redis"
        f" {', '.join(first)} and {last}"
    )


def growth_alt() -> str:
    """Return in words how long a filter stops a crawl or Redis."""
    ours = [
        *rows_of("growth", "growth", name="scrapy-bloom"),
        *rows_of("growth", "loop", name="scrapy-bloom"),
    ]
    times = [value for row in ours for name, value in row.items() if name not in ("name", "pages")]
    scrapys, shared = (
        rows_of("growth", "loop", name="Scrapy")[-1],
        rows_of("growth", "growth", name="scrapy-redis")[-1],
    )
    return (
        f"The longest stop against the number of pages: ours stays below"
        f" {ceil(max(times) * 100) * 10} ms up to {max(row['pages'] for row in ours):,}; with"
        f" {scrapys['pages']:,} Scrapy's filter takes {scrapys['open']:.1f} s, and scrapy-redis"
        f" {shared['delete']:.1f} s"
    )


ALTS: dict[str, Callable[[], str]] = {
    "growth": growth_alt,
    "kills": lambda: lost_text("kills", "crawls that are killed"),
    "outage": lambda: lost_text(
        "outage", "crawls of a site that is down for four seconds, after the next run"
    ),
    "polite": polite_text,
}
"""What plots show, in words, by the names of their files: the text of each image."""

IMAGES = re.compile(r'(<img alt=")[^"]*(" src="[^"]*plots/(\w+)\.svg")')


def with_alts(text: str) -> str:
    """Return a page whose images say in words what the results have."""
    return IMAGES.sub(
        lambda m: f"{m[1]}{ALTS[m[3]]()}{m[2]}" if m[3] in ALTS else m[0],
        text,
    )


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {},
    "docs/index.md": {},
    "docs/guides/sizing.md": {"growth": growth_text, "sizing": sizing_table},
    "docs/guides/moving.md": {"beside": beside_text},
    "docs/reference/commands.md": {"verbs": verbs_table},
    "docs/reference/settings.md": {"settings": settings_list},
    "docs/reference/stats.md": {"stats": stats_table},
    "docs/reference/versions.md": {"matrix": matrix_text},
    "docs/reference/canonical.md": {
        "steps": steps_table,
        "tracking": tracking_list,
    },
}


PAGES = {"docs/benchmarks.md": page.short_page}


def filled(file: str, text: str) -> str:
    """Return the text of a file with its tables as they should be."""
    if file in PAGES:
        return with_alts(PAGES[file](results.read()))
    for name, table in TABLES[file].items():
        place = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = place.subn(lambda m, table=table: f"{m[1]}\n{table()}\n\n{m[2]}", text)
        if count != 1:
            sys.exit(f"{file} has {count} places for the table {name!r}, and needs one.")
    return with_alts(text)


def main() -> None:
    """Check or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into the files")
    arguments = parser.parse_args()
    for file in (*TABLES, *PAGES):
        path = ROOT / file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if arguments.write:
            path.write_text(filled(file, text), encoding="utf-8")
        elif filled(file, text) != text:
            sys.exit(f"The tables in {file} are out of date: run `make docs`.")


if __name__ == "__main__":
    main()
