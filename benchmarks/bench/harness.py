"""Taking turns and medians: how times are taken, in every part alike.

A machine gets faster and slower while it measures. So the candidates take turns within one run,
in an order that is turned round each time; processor time is what counts; the median of the repeats
is told with its spread; and only ratios are worth quoting.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from time import process_time

from bench.part import Row

Run = Callable[[], object]


Prepare = Callable[[], Iterable[tuple[Run, int]]]
"""Prepares one repeat and yields what to time, part by part, each with its number of operations."""


def take_turns(candidates: Mapping[str, Prepare], repeats: int) -> dict[str, list[list[float]]]:
    """Time each candidate once in each of `repeats` rounds.

    :returns: name -> for each part that its `prepare` yields, the seconds of all rounds.
    """
    samples: dict[str, list[list[float]]] = {name: [] for name in candidates}
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


def time_it(run: Run, operations: int) -> float:
    """Return the processor time of each operation of one call, without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        start = process_time()
        run()
        return (process_time() - start) / operations
    finally:
        gc.enable()


def spread(key: str, values: Sequence[float]) -> Row:
    """Return median, lowest and highest of the repeats as ``key``, ``key_low`` and ``key_high``."""
    return {key: median(values), f"{key}_low": min(values), f"{key}_high": max(values)}


def mean_of(parts: Sequence[Sequence[float]]) -> list[float]:
    """Return for each round the mean of its parts, each of the same weight."""
    return [sum(of_round) / len(of_round) for of_round in zip(*parts, strict=True)]
