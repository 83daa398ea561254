"""What the benchmarks share: taking turns, medians, tables.

A machine gets faster and slower while it measures. So the candidates take turns within one run,
processor time is counted instead of time on the wall, the median of the repeats is told with its
spread, and only ratios are worth quoting.
"""

from __future__ import annotations

import gc
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median
from time import process_time

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Timing:
    """Seconds per operation of one candidate, over the repeats.

    Attributes:
        name: the candidate.
        median: of the repeats.
        low: the fastest repeat.
        high: the slowest repeat.
    """

    name: str
    median: float
    low: float
    high: float

    def micros(self) -> str:
        """Return the times in microseconds, as a table shows them."""
        return f"{self.median * 1e6:.2f} ({self.low * 1e6:.2f} to {self.high * 1e6:.2f})"


def take_turns(
    candidates: Mapping[str, Callable[[], Iterable[tuple[Callable[[], object], int]]]],
    repeats: int,
) -> list[Timing]:
    """Time each candidate once in each of `repeats` rounds.

    :param candidates: name -> a function that prepares one repeat and returns its parts: what to
        time, and how many operations that is. Parts are averaged with equal weight.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, prepare in candidates.items():
            parts = [_time(run) / operations for run, operations in prepare()]
            seconds[name].append(sum(parts) / len(parts))
    return [Timing(name, median(took), min(took), max(took)) for name, took in seconds.items()]


def _time(run: Callable[[], object]) -> float:
    gc.collect()
    gc.disable()
    try:
        start = process_time()
        run()
        return process_time() - start
    finally:
        gc.enable()


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)


def setting(*packages: str) -> str:
    """Return the machine and the versions that a result belongs to, in one line."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"Python {platform.python_version()}, {platform.machine()}; {versions}"
