"""The colours of all plots, and the plot that they share: what was fetched, what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.part import Row

OUR_COLOUR, THEIR_COLOUR, LOST_COLOUR = "#12936b", "#8a63d2", "#d1495b"
"""Readable on light and dark pages."""


def colour_of(name: str, ours: str) -> str:
    """Return the colour of what has a name, if that is the name of ours."""
    return OUR_COLOUR if name == ours else THEIR_COLOUR


def draw_fetched(axes: Any, rows: Sequence[Row], ours: str) -> None:
    """Draw a bar for each scheduler: the share of its pages that came in the end, and the rest.

    :param ours: the name of our scheduler; all others are theirs.
    """
    names = [row["name"].replace(", ", ",\n") for row in rows]
    fetched = [100 * (1 - row["lost"] / row["pages"]) for row in rows]
    colours = [colour_of(row["name"], ours) for row in rows]
    axes.barh(names, fetched, 0.6, color=colours)
    axes.barh(names, [100 - each for each in fetched], 0.6, left=fetched, color=LOST_COLOUR)
    for place, row in enumerate(rows):
        text = f"{row['lost']:,} of {row['pages']:,} lost"
        axes.text(98, place, text, ha="right", va="center", color="white", weight="bold")
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)
    axes.set(xlabel="% of the pages; green, purple: fetched; red: never", xlim=(0, 100))
    axes.figure.set_figheight(1 + 0.7 * len(rows))
