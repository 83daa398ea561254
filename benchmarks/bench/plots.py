"""Draw the plots of docs/benchmarks.md from the results: ``python -m bench.plots``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

from bench import results
from bench.parts import PARTS

FOLDER = Path(__file__).parents[2] / "docs" / "plots"

LOOK: Any = {  # matplotlib lists the names of all its settings in a type of its own
    "svg.hashsalt": "scrapy-bloom",  # the same results give the same file
    "figure.figsize": (5.4, 4.2),  # as wide as a phone, so that the letters stay readable there
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "font.size": 10,
    "savefig.transparent": True,
}
INK = {"": "#24292f", "-dark": "#d0d7de"}
"""Colour of letters and lines, by the ending of the file's name."""
INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")


def main() -> None:
    """Draw all plots that there are results for, for light and for dark pages."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    FOLDER.mkdir(exist_ok=True)
    for name, result in results.read().items():
        for plot in PARTS[name].plots:
            for ending, ink in INK.items():
                with plt.rc_context(LOOK | dict.fromkeys(INKED, ink)):
                    figure, axes = plt.subplots(layout="constrained")
                    plot.draw(axes, result["tables"])
                    add_legend(figure, axes)
                    path = FOLDER / f"{plot.name}{ending}.svg"
                    figure.savefig(path, metadata={"Date": None})
                    plt.close(figure)


def add_legend(figure: Any, axes: Any) -> None:
    """Put a legend below the plot, where it hides no data, if there is anything to tell apart."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        columns = max(1, WIDEST // max(map(len, labels)))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


WIDEST = 68  # letters of labels that have room side by side


if __name__ == "__main__":
    main()
