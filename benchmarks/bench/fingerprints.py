"""Random fingerprints by the million, always the same ones for the same seed, none of them kept."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from random import Random
from struct import iter_unpack

BYTES = 20
_CHUNK = 4096


def stream(seed: int) -> Iterator[bytes]:
    """Yield fingerprints without end."""
    random = Random(seed)
    chunks = iter(lambda: random.randbytes(BYTES * _CHUNK), b"")
    return (item for (item,) in chain.from_iterable(iter_unpack("20s", c) for c in chunks))


def take(source: Iterator[bytes], count: int) -> list[bytes]:
    """Return the next so many."""
    return list(islice(source, count))


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise LookupError("VmRSS")
