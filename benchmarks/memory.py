"""Bytes per URL at an error rate of 1e-6: full to the capacity, and on the way to 100 times that.

What info() says the bits take, after each growth, when the new slice has been touched all over, and
at 1, 10 and 100 times the capacity; and what the process has grown by at the end. Against Scrapy's
set of 20-byte fingerprints.
"""

from __future__ import annotations

import argparse
import os
import tracemalloc
from pathlib import Path

from harness import setting, show

from scrapy_bloom import LocalFilter
from scrapy_bloom.values import write_size


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", type=int, default=1_000_000)
    capacity = parser.parse_args().capacity
    growths = [capacity << i for i in range(7)]
    moments = {round(items * touched) for items in growths for touched in (1.005, 1.01, 1.02)}
    told = {capacity, 10 * capacity, 100 * capacity}
    before = resident()
    seen = LocalFilter(capacity)
    items, worst, rows = 0, (0.0, 0), []
    for moment in sorted(moments | told):
        while items < moment:
            seen.add(os.urandom(20))
            items += 1
        info = seen.info()
        worst = max(worst, (info.bytes / items, items))
        if moment in told:
            rows.append((f"{items:,}", str(info.slices), f"{info.bytes / items:.2f}"))
    rows.append((f"worst moment: {worst[1]:,}", "", f"{worst[0]:.2f}"))
    grown = resident() - before
    tracemalloc.start()
    known = {os.urandom(20) for _ in range(1_000_000)}
    rows.append(("Scrapy's set, 1,000,000", "", f"{tracemalloc.get_traced_memory()[0] / 1e6:.1f}"))
    print(setting("bitarray"))
    show(
        f"Memory per URL, capacity {capacity:,}, error rate 1e-6",
        ("URLs", "slices", "bytes per URL"),
        rows,
    )
    print(
        f"At the end info() says {write_size(info.bytes)}, the process grew by {write_size(grown)}."
    )
    assert len(known) == 1_000_000


if __name__ == "__main__":
    main()
