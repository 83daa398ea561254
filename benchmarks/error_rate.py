"""The error rate that comes out, against the one that was asked for and the one that info() tells.

At 1e-2, 1e-3 and 1e-4; at 1,000, 100,000 and 3,000,000 items, the last in a filter that has grown
from a capacity of 100,000; for random, sequential and same-host fingerprints. A filter spends its
error rate slice by slice, so what is measured stays below what was asked: by how much, the column
"told" says beforehand. The Wilson 95 % interval of what is measured should hold that 19 times of
20, and must lie below what was asked.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable

from harness import setting, show
from scipy.stats import binomtest

from scrapy_bloom import LocalFilter

KINDS: dict[str, Callable[[int], bytes]] = {
    "random": lambda i: hashlib.blake2b(b"%d" % i, digest_size=20).digest(),
    "sequential": lambda i: i.to_bytes(20, "big"),
    "one host": lambda i: hashlib.sha1(  # noqa: S324 - as Scrapy makes them
        b'{"body": "", "headers": {}, "method": "GET", "url": "https://example.com/%d"}' % i
    ).digest(),
}


def measure(kind: str, error_rate: float, items: int, capacity: int) -> tuple[str, ...]:
    """Return one row of the table."""
    make, queries = KINDS[kind], round(400 / error_rate)
    seen = LocalFilter(capacity, error_rate)
    lost = sum(seen.add(make(i)) for i in range(items))
    wrong = sum(make(i) in seen for i in range(items, items + queries))
    info = seen.info()
    found = binomtest(wrong, queries).proportion_ci(0.95, method="wilson")
    return (
        kind,
        f"{error_rate:g}",
        f"{items:,}",
        str(info.slices),
        f"{info.estimated_fp_rate:.3g}",
        f"{wrong / queries:.3g}",
        f"{found.low:.3g} to {found.high:.3g}",
        "yes" if found.low <= info.estimated_fp_rate <= found.high else "no",
        f"{info.expected_lost:.1f} / {lost}",
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    sizes = ((1000, 1000), (100_000, 100_000), (3_000_000, 100_000))
    print(setting("mmh3", "scipy"))
    show(
        "Share of new items called seen",
        (
            "items are",
            "asked",
            "items",
            "slices",
            "told",
            "measured",
            "95 %",
            "holds",
            "lost: told / counted",
        ),
        [
            measure(kind, error_rate, items, capacity)
            for items, capacity in sizes
            for error_rate in (1e-2, 1e-3, 1e-4)
            for kind in KINDS
        ],
    )


if __name__ == "__main__":
    main()
