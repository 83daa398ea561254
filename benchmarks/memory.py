"""Bytes per URL at an error rate of 1e-6: full to the capacity, and on the way to 100 times that.

Measured as the bits are taken, after each slice is made and when it is full, with the memory that
the process really holds for them; against Scrapy's set of 20-byte fingerprints.
"""

from __future__ import annotations

import argparse
import os
import tracemalloc

from harness import setting, show

from scrapy_bloom import LocalFilter


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", type=int, default=100_000)
    arguments = parser.parse_args()
    tracemalloc.start()
    empty = tracemalloc.get_traced_memory()[0]
    seen = LocalFilter(arguments.capacity)
    rows, worst, slices = [], 0.0, 1
    for items in range(1, 100 * arguments.capacity + 1):
        seen.add(os.urandom(20))
        if items % 1000 == 0 and items >= arguments.capacity:
            taken = tracemalloc.get_traced_memory()[0] - empty
            worst = max(worst, taken / items)
        if items in {arguments.capacity, 10 * arguments.capacity, 100 * arguments.capacity}:
            slices = seen.info().slices
            rows.append((f"{items:,}", str(slices), f"{taken / items:.2f}"))
    rows.append(("worst moment", "", f"{worst:.2f}"))
    before = tracemalloc.get_traced_memory()[0]
    known = {os.urandom(20) for _ in range(1_000_000)}
    rows.append(
        (
            "Scrapy's set, 1,000,000",
            "",
            f"{(tracemalloc.get_traced_memory()[0] - before) / 1e6:.1f}",
        )
    )
    assert len(known) == 1_000_000
    print(setting("bitarray"))
    show(
        f"Memory per URL, capacity {arguments.capacity:,}, error rate 1e-6",
        ("URLs", "slices", "bytes per URL"),
        rows,
    )


if __name__ == "__main__":
    main()
