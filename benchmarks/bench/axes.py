"""What several plots draw alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.part import Row


def in_ms(seconds: float) -> str:
    """Return a time as the text of a plot or a sentence has it."""
    return f"{seconds * 1e3:g} ms"


def over_distances(axes: Any, delays: Sequence[float]) -> None:
    """Label what shows the time for a page at each distance, in seconds, of Redis."""
    axes.set_yscale("log")
    axes.set_xticks(range(len(delays)), [in_ms(delay) for delay in delays])
    axes.set_xlabel("round-trip time added to loopback")
    axes.set_ylabel("ms per page")


def bars_of_kills(
    axes: Any,
    kills: Sequence[Row],
    heights: Mapping[str, Callable[[Row], float]],
) -> None:
    """Draw a group of bars for each scheduler whose crawls were killed.

    :param heights: for each bar of a group, what the legend calls it and how high it is.
    """
    width = 0.8 / len(heights)
    for place, (label, height) in enumerate(heights.items()):
        left = (place - (len(heights) - 1) / 2) * width
        axes.bar(
            [number + left for number in range(len(kills))],
            [height(row) for row in kills],
            0.95 * width,
            label=label,
        )
    axes.set_xticks(range(len(kills)), [f"{row['name']}\n{row['kills']} kills" for row in kills])
