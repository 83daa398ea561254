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
    "figure.figsize": (7.2, 4.2),
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "font.size": 9,
}


def main() -> None:
    """Draw all plots that there are results for."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    FOLDER.mkdir(exist_ok=True)
    for name, result in results.read().items():
        for plot in PARTS[name].plots:
            with plt.rc_context(LOOK):
                figure, axes = plt.subplots(layout="constrained")
                plot.draw(axes, result["tables"])
                figure.savefig(FOLDER / f"{plot.name}.svg", metadata={"Date": None})
                plt.close(figure)


if __name__ == "__main__":
    main()
