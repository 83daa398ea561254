"""What one part of the benchmarks is: how it measures, and how its results are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Row = dict[str, Any]
"""One line of a table: plain numbers in SI units (seconds, bytes) and names, as JSON keeps them."""

Rows = Mapping[str, Sequence[Row]]
"""The results of a part: name of a table -> its lines."""

T = TypeVar("T")


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        quick: a few seconds for each part, to see that it works; else the figures that are kept.
    """

    quick: bool = False

    def of(self, full: T, quick: T) -> T:
        """Return one of the two."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        key: of the value in each row.
        title: with the unit.
        form: a format specification for numbers; text is shown as it is, None as nothing.
        unit: what the value is divided by before it is shown: 1e-6 for microseconds.
        spread: whether the lowest and the highest repeat are shown behind, from `key`_low, _high.
    """

    key: str
    title: str
    form: str = ""
    unit: float = 1
    spread: bool = False

    def show(self, row: Row) -> str:
        """Return the value of a row as a table shows it."""
        value = row.get(self.key)
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        text = self._number(value)
        if self.spread and row.get(f"{self.key}_low") is not None:
            low, high = (self._number(row[f"{self.key}_{end}"]) for end in ("low", "high"))
            return f"{text} ({low} to {high})"
        return text

    def _number(self, value: float) -> str:
        return f"{value if self.unit == 1 else value / self.unit:{self.form}}"


@dataclass(frozen=True)
class Table:
    """How a table of results is shown.

    Attributes:
        name: of its rows in the results.
        title: what it shows.
        columns: from left to right.
    """

    name: str
    title: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Plot:
    """A picture of results.

    Attributes:
        name: of the file, without its ending.
        title: what it shows, for those who cannot see it, too.
        draw: draws it on a matplotlib Axes.
    """

    name: str
    title: str
    draw: Callable[[Any, Rows], None]


@dataclass(frozen=True)
class Part:
    """One question and how it is answered.

    The module of a part must be importable without what it compares with: that is imported where it
    is used, and so is matplotlib.

    Attributes:
        name: on the command line.
        title: of its section on the page.
        method: Markdown; the setting and the method, which stand before the results.
        packages: distributions whose versions belong to the results.
        run: measures.
        tables: of the results.
        plots: of the results.
    """

    name: str
    title: str
    method: str
    packages: tuple[str, ...]
    run: Callable[[Scale], Rows]
    tables: tuple[Table, ...]
    plots: tuple[Plot, ...] = ()
