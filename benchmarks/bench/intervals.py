"""How sure a count is: 95 % intervals, and what theory expects."""

from __future__ import annotations

from math import prod

from bench.part import Column, Row
from scrapy_bloom import LocalFilter
from scrapy_bloom.core import sizing


def wilson(wrong: int, queries: int) -> Row:
    """Return Wilson's interval (1927) of the share of so many queries, as ``low`` and ``high``."""
    from scipy.stats import binomtest

    found = binomtest(wrong, queries).proportion_ci(0.95, method="wilson")
    return {"low": found.low, "high": found.high}


def poisson(count: int) -> Row:
    """Return the exact interval of a Poisson mean when so many were counted (Garwood 1936)."""
    from scipy.stats import chi2

    return {
        "low": float(chi2.ppf(0.025, 2 * count)) / 2 if count else 0.0,
        "high": float(chi2.ppf(0.975, 2 * count + 2)) / 2,
    }


def theory(seen: LocalFilter) -> float:
    """Return the error rate by the formula of Putze, Sanders, Singler (2007) for each slice."""
    state = seen.state()
    slices = [(part.items, part.spec.blocks) for part in state.slices]
    rates = [sizing.false_positive_rate(n, blocks, state.hashes) for n, blocks in slices]
    return 1 - prod(1 - rate for rate in rates)


LOSSES = (
    Column("expected_lost", "lost, expected", ".2f"),
    Column("lost", "lost, counted", ","),
    Column("low", "95 %, from", ".2f"),
    Column("high", "to", ".2f"),
)
"""Show how many items were lost, with :func:`poisson`."""

SHARE = (
    Column("measured", "measured", ".2e"),
    Column("low", "95 %, from", ".1e"),
    Column("high", "to", ".1e"),
)
"""Show a share that was measured, with :func:`wilson`."""
