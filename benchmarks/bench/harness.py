"""Taking turns and medians: how times are taken, in every part alike.

A machine gets faster and slower while it measures. So the candidates take turns within one run,
in an order that is turned round each time; processor time stands beside time on the wall; the
median of the repeats is told with its spread; and only ratios are worth quoting.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

from bench.part import Row

Run = Callable[[], object]


class Sample(NamedTuple):
    """What one repeat took, in seconds for each operation."""

    cpu: float
    wall: float


Prepare = Callable[[], Iterable[tuple[Run, int]]]
"""Prepares one repeat and yields what to time, part by part, each with its number of operations."""


def take_turns(candidates: Mapping[str, Prepare], repeats: int) -> dict[str, list[list[Sample]]]:
    """Time each candidate once in each of `repeats` rounds.

    :returns: name -> for each part that its `prepare` yields, the samples of all rounds.
    """
    samples: dict[str, list[list[Sample]]] = {name: [] for name in candidates}
    for number in range(repeats):
        for name in in_turn(list(candidates), number):
            parts = [time_it(run, operations) for run, operations in candidates[name]()]
            samples[name].append(parts)
    return {
        name: [list(part) for part in zip(*each, strict=True)] for name, each in samples.items()
    }


def in_turn(names: Sequence[str], number: int) -> list[str]:
    """Return the order of a round: every second one goes backwards."""
    return list(reversed(names)) if number % 2 else list(names)


def time_it(run: Run, operations: int) -> Sample:
    """Time one call, without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        cpu, wall = process_time(), perf_counter()
        run()
        return Sample((process_time() - cpu) / operations, (perf_counter() - wall) / operations)
    finally:
        gc.enable()


def summed(samples: Sequence[Sample]) -> Row:
    """Return the median of the repeats with its spread, as fields of a row.

    ``cpu``, ``cpu_low``, ``cpu_high``, ``wall``, ``wall_low`` and ``wall_high``, in seconds.
    """
    row: Row = {}
    for kind in Sample._fields:
        row |= spread(kind, [getattr(sample, kind) for sample in samples])
    return row


def spread(key: str, values: Sequence[float]) -> Row:
    """Return median, lowest and highest of the repeats as ``key``, ``key_low`` and ``key_high``."""
    return {key: median(values), f"{key}_low": min(values), f"{key}_high": max(values)}


def mean_of(parts: Sequence[Sequence[Sample]]) -> list[Sample]:
    """Return for each round the mean of its parts, each of the same weight."""
    return [
        Sample(*(sum(kind) / len(kind) for kind in zip(*of_round, strict=True)))
        for of_round in zip(*parts, strict=True)
    ]
