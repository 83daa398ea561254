"""The benchmarks' results: they are whole, what we claim of them holds, and the plots are there."""

from pathlib import Path

import pytest

from bench import results
from bench.claims import CLAIMS
from bench.parts import PARTS

PLOTS = Path(__file__).parents[2] / "docs" / "plots"


@pytest.fixture(scope="module")
def kept():
    return results.read()


def test_every_plot_is_there():
    drawn = {path.stem for path in PLOTS.glob("*.svg")}
    named = {plot.name for part in PARTS.values() for plot in part.plots}
    assert drawn == {"demo"} | named | {f"{name}-dark" for name in named}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text)
def test_what_we_claim_holds(kept, claim):
    assert claim.holds(kept)
