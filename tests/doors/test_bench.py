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


def test_every_part_is_kept_in_full_with_its_setting(kept):
    assert set(kept) == set(PARTS)
    for result in kept.values():
        assert not result["quick"]
        assert {"processor", "cores", "memory_gb", "system"} == set(result["machine"])
        assert {"Python", "scrapy-bloom", "bitarray", "mmh3"} <= set(result["versions"])


def test_every_column_has_something_to_show(kept):
    for name, part in PARTS.items():
        for table in part.tables:
            rows = kept[name]["tables"][table.name]
            for column in table.columns:
                assert any(column.show(row) for row in rows), (name, table.name, column.key)


def test_every_plot_is_there():
    drawn = {path.stem for path in PLOTS.glob("*.svg")}
    named = {plot.name for part in PARTS.values() for plot in part.plots}
    assert drawn == {"demo"} | named | {f"{name}-dark" for name in named}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text)
def test_what_we_claim_holds(kept, claim):
    assert claim.holds(kept)
