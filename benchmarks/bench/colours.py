"""One colour for each candidate, the same in all plots, readable on white and on black."""

from __future__ import annotations

from collections.abc import Sequence

COLOURS = {  # by the beginning of the name; the longer one comes first
    "scrapy-bloom": "#17a67a",
    "ours": "#17a67a",
    "one BITFIELD": "#4fa3b5",
    "Scrapy's own": "#3f8ae0",
    "scrapy-redis-bloomfilter": "#d98a1f",
    "scrapy-redis": "#d9534f",
    "RedisBloom": "#a678de",
    "SADD": "#8c8c8c",
    "set of": "#8c8c8c",
    "SQLite": "#7d6b91",
    "rbloom": "#c2579f",
    "fastbloom-rs": "#b8a11c",
    "pybloom-live": "#6f86a8",
    "pyprobables": "#5f9ea0",
    "textbook loop": "#b5795a",
}
STYLES = ("-", "--", ":", "-.")
HATCHES = ("", "///", "...", "xxx")


def colour_of(name: str) -> str:
    """Return the colour of a candidate.

    :raises LookupError: if it has none: give it a line in :data:`COLOURS`.
    """
    for start, colour in COLOURS.items():
        if name.startswith(start):
            return colour
    raise LookupError(f"{name!r} has no colour")


def variant(name: str, names: Sequence[str]) -> int:
    """Return which of the candidates of one colour this is, from 0: they differ in style."""
    alike = [other for other in names if colour_of(other) == colour_of(name)]
    return alike.index(name)


def style_of(name: str, names: Sequence[str]) -> str:
    """Return the style of a candidate's line beside other candidates."""
    return STYLES[variant(name, names) % len(STYLES)]


def hatch_of(name: str, names: Sequence[str]) -> str:
    """Return the hatch of a candidate's bar beside other candidates."""
    return HATCHES[variant(name, names) % len(HATCHES)]
