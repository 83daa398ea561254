"""``scrapy bloom info``: what a filter is, how full, and who uses it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from scrapy_bloom.canonical.rules import EVERYWHERE
from scrapy_bloom.commands.context import Context, add_target
from scrapy_bloom.commands.output import Fact
from scrapy_bloom.commands.target import Information
from scrapy_bloom.filter.info import FilterInfo
from scrapy_bloom.options import write_size, write_span

EXAMPLE = "job"
SUMMARY = "show what a filter is, how full it is, and who uses it"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_target(parser)
    parser.add_argument(
        "--check", action="store_true", help="read all of it instead, and look for damage"
    )


def run(args: Namespace, context: Context) -> int:
    """Print what is known of a filter; its secret is not among it."""
    if args.check:
        return _check(args, context)
    found = context.target(args.target, args.key).info()
    output = context.output
    if output.as_json:
        output.json(found)
        return 0
    output.facts(found.target, _facts(found))
    if output.on_terminal:
        output.table(
            "slices",
            ("shard", "capacity", "items", "bytes", "error rate when full", "filled"),
            [
                (
                    slice_.shard,
                    slice_.capacity,
                    slice_.items,
                    slice_.bytes,
                    slice_.error_rate,
                    "" if slice_.fill_ratio is None else f"{slice_.fill_ratio:.1%} of its bits",
                )
                for slice_ in found.slices
            ],
        )
    return 0


def _check(args: Namespace, context: Context) -> int:
    """Print what was found; return 1 if something is wrong."""
    output = context.output
    found = [*context.target(args.target, args.key).check()]
    if output.as_json:
        output.json(found)
    else:
        output.table(
            "",
            ("", "what", "found", "what to do"),
            [(one.level, one.what, one.found, one.advice) for one in found],
        )
    return 1 if any(one.level == "bad" for one in found) else 0


def _window_facts(state: FilterInfo) -> list[Fact]:
    if state.window is None or state.oldest is None or state.newest is None:
        return []
    return [
        Fact("window", write_span(state.window)),
        Fact("generations", state.generations),
        Fact("oldest since", datetime.fromtimestamp(state.oldest, tz=timezone.utc)),
        Fact("newest since", datetime.fromtimestamp(state.newest, tz=timezone.utc)),
    ]


def _size_facts(state: FilterInfo) -> list[Fact]:
    return [
        Fact("capacity", state.capacity, f"{state.capacity:,}"),
        Fact("fill ratio", state.fill_ratio, f"{state.fill_ratio:.1%} of the bits are set"),
        Fact("slices", state.slices),
        Fact("bytes", state.bytes, write_size(state.bytes)),
        Fact("error rate", state.error_rate, f"{state.error_rate:g}, as set"),
        Fact("error rate now", state.estimated_fp_rate, f"{state.estimated_fp_rate:.3g}"),
        Fact("expected lost", state.expected_lost, f"{state.expected_lost:.3g} pages so far"),
    ]


def _facts(found: Information) -> list[Fact]:
    state = found.filter
    share = f" ({state.items / state.capacity:.0%} of {state.capacity:,})"
    alive = [worker.id for worker in found.workers if worker.alive]
    facts = [
        Fact("kind", found.kind),
        Fact("project", found.project),
        Fact("spider", found.spider),
        Fact("items", state.items, f"{state.items:,}{share}"),
        *_size_facts(state),
        *_window_facts(state),
        Fact("hashes", found.hashes),
        Fact("fingerprinter", found.fingerprinter),
        Fact("rules", rules_in_words(found.canonical)),
        Fact("forgotten", found.let_through, f"{found.let_through:,} pages are eligible again"),
        Fact("exact", found.exact or None),
        Fact("crawl", found.crawl),
        Fact("process", found.process or None),
        Fact("written", found.written),
        Fact("journal", found.journal, f"{found.journal or 0:,} marks"),
        Fact("waiting", found.waiting, f"{found.waiting or 0:,} requests"),
        Fact("in flight", found.under_way, f"{found.under_way or 0:,} requests"),
        Fact("failed", found.failed, f"{found.failed or 0:,} requests"),
    ]
    if found.kind == "redis":
        facts += [
            Fact("layout", found.layout),
            Fact("shards", found.shards),
            Fact("workers alive", len(alive), ", ".join([str(len(alive)), *alive])),
            Fact("workers silent", len(found.workers) - len(alive)),
        ]
    return [fact for fact in facts if fact.value not in ("", None)]


def rules_in_words(record: Mapping[str, Any]) -> str:
    """Return by which rules URLs were rewritten, and by which versions.

    :param record: as a filter has it.
    """
    rules = dict(record.get("rules", {}))
    general = dict(rules.pop(EVERYWHERE, {}))
    words = [general.pop("level")] if "level" in general else []
    words += [
        f"{name} {' '.join(value) if isinstance(value, list) else value}"
        for name, value in general.items()
    ]
    if "sha256" in rules:  # they are too long to be recorded in full
        words.append(f"SHA-256 {rules['sha256']}")
    domains = rules.get("domains", len(rules))
    words += [f"{domains:,} domains with rules of their own"] * bool(domains)
    words += [f"{name} {value}" for name, value in record.items() if name != "rules"]
    return ", ".join(words)
