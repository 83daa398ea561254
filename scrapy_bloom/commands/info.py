"""``scrapy bloom info``: what a filter is, how full, and who uses it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from scrapy_bloom.canonical.rules import EVERYWHERE
from scrapy_bloom.commands.context import Context, add_target
from scrapy_bloom.commands.output import Fact
from scrapy_bloom.core.info import FilterInfo
from scrapy_bloom.options import write_size, write_span
from scrapy_bloom.tools.checking import check
from scrapy_bloom.tools.information import Information, info

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
    found = info(args.target, key=args.key, project=context.project)
    output = context.output
    if output.as_json:
        output.json(found)
        return 0
    output.facts(found.target, _facts(found))
    if output.on_terminal and _is_sized(found):
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
    found = check(args.target, key=args.key, project=context.project, progress=output.progress)
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


def _is_sized(found: Information) -> bool:
    """Return whether the filter's sizes are known.

    Before its first snapshot a job has only a list of marks.
    """
    return found.kind != "job" or found.clean_stop is not None


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
    sized = _is_sized(found)
    share = f" ({state.items / state.capacity:.0%} of {state.capacity:,})" if sized else ""
    facts = [
        Fact("kind", found.kind),
        Fact("spider", found.spider),
        Fact("items", state.items, f"{state.items:,}{share}"),
        *(_size_facts(state) if sized else []),
        *_window_facts(state),
        Fact("hashes", found.hashes if sized else None),
        Fact("fingerprinter", found.fingerprinter),
        Fact("rules", rules_in_words(found.canonical)),
        Fact("written by", found.written_by),
        Fact("let through", found.let_through, f"{found.let_through:,} pages are new once more"),
        Fact("exact", found.exact, f"{found.exact or 0:,} fingerprints in exact lists"),
        Fact("crawl", found.crawl),
        Fact("process", found.process),
        Fact("last clean stop" if found.kind == "job" else "written", found.clean_stop),
        Fact("waiting", found.waiting, f"{found.waiting or 0:,} requests"),
        Fact("under way", found.under_way, f"{found.under_way or 0:,} requests"),
    ]
    if found.kind == "job":
        facts += [
            Fact("snapshots", found.stops),
            Fact("marks since", found.journal, f"{found.journal:,} since the last snapshot"),
        ]
    if found.kind == "redis":
        alive = [worker.id for worker in found.workers if worker.alive]
        facts += [
            Fact("layout", found.layout),
            Fact("shards", found.shards),
            Fact("workers alive", len(alive), ", ".join([str(len(alive)), *alive])),
            Fact("workers silent", len(found.workers) - len(alive)),
            Fact("losses", found.losses),
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
