"""What must hold of our figures, each with its bound, and the figures that the README shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.part import Row
from bench.results import Result

Results = Mapping[str, Result]


@dataclass(frozen=True)
class Claim:
    """One bound.

    Attributes:
        text: what is bounded.
        value: takes it from the results.
        side: "at most" or "at least".
        bound: inclusive.
        form: how the value is written.
    """

    text: str
    value: Callable[[Results], float]
    side: str
    bound: float
    form: str = ".2f"

    def holds(self, value: float) -> bool:
        """Return whether a value is on the right side."""
        return value <= self.bound if self.side == "at most" else value >= self.bound


def row(results: Results, part: str, table: str, **fields: object) -> Row:
    """Return the one row of a table that has these fields.

    :raises LookupError: if there is none, or more than one.
    """
    found = [
        row
        for row in results[part]["tables"][table]
        if all(row.get(key) == value for key, value in fields.items())
    ]
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows of {part}/{table} have {fields}")
    return dict(found[0])


CLAIMS: tuple[Claim, ...] = ()


def SHORT(results: Results) -> list[tuple[str, str, str, str]]:  # noqa: N802
    """Return the rows of the README's table."""
    del results
    return []
