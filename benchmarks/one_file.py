"""Print what growth costs, and what the file of a job costs; each a few minutes at most.

Usage::

    python benchmarks/one_file.py growth [MOST]     # the curve from 1e4 items, by default to 1e8
    python benchmarks/one_file.py store SIZE [PER_COMMIT [MARKS [exact]]]

``growth`` compares a filter of the default capacity with one made for so many items. Beyond the
first 300,000 items of each step bits are set by chance, which takes less time than hashing.
``store`` fills a filter for SIZE items up to 90 %, and then commits MARKS more.
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import mkdtemp
from typing import Final, TypeVar

from bitarray import bitarray

from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.filter.sizing import BLOCK_BYTES, HASHES
from scrapy_bloom.filter.slices import Slice
from scrapy_bloom.local.store import Store

T = TypeVar("T")

_TIMED: Final = 300_000


def main() -> None:
    """Run the part that is asked for."""
    logging.disable()
    part, *numbers = sys.argv[1:]
    if part == "growth":
        growth(int(float(numbers[0])) if numbers else 10**8)
    else:
        exact = "exact" in numbers
        sizes = [int(float(number)) for number in numbers if number != "exact"]
        per_commit, marks = (*sizes[1:], *(50, 2_000_000)[len(sizes) - 1 :])
        store(sizes[0], per_commit, marks, exact=exact)


def growth(most: int) -> None:
    """Print bytes and time per item of a growing filter beside one of the right size."""
    print("      items  slices  bytes an item  sized  ratio  µs to add  sized  ratio")
    grown = LocalFilter()
    step = 10_000
    while step <= most:
        sized = LocalFilter(step)
        for one in grown, sized:
            _fill(one, max(0, step - _TIMED))
        count = min(_TIMED, step - grown.items)
        times = [[0.0], [0.0]]
        known = _fingerprints()
        for _ in range(max(1, count // 10_000)):  # in turns
            batch = [*islice(known, 10_000)]
            for one, taken in zip((grown, sized), times, strict=True):
                begin = time.thread_time()
                one.add_many(batch)
                taken[0] += time.thread_time() - begin
        sizes = [_bytes(one) / step for one in (grown, sized)]
        micros = [taken[0] / max(1, count) * 1e6 for taken in times]
        print(
            f"{step:11,} {len(grown.slices):7} {sizes[0]:14.2f} {sizes[1]:6.2f}"
            f" {sizes[0] / sizes[1]:6.2f} {micros[0]:10.2f} {micros[1]:6.2f}"
            f" {micros[0] / micros[1]:6.2f}",
            flush=True,
        )
        step = int(round(step * 10**0.25, -3))


def store(size: int, per_commit: int, marks: int, *, exact: bool) -> None:
    """Print what commits, opening and closing take, and how large the file is."""
    folder = Path(mkdtemp(prefix="one-file-", dir=os.environ.get("TMPDIR")))
    path = folder / "bloom.sqlite"
    fresh = LocalFilter(size)
    _fill(fresh, int(size * 0.9))
    job = Store(path, fresh, exact=exact)
    job.marks.journal = size  # so that closing writes the blocks
    _timed("first close", job.close)
    print(f"size {size:,}: file {path.stat().st_size / 1e6:.1f} MB", flush=True)
    job = _timed("open", lambda: Store(path, LocalFilter(size), exact=exact))
    known, written = _fingerprints(), _written()
    cpu: dict[bool, list[float]] = {False: [], True: []}
    wall: dict[bool, list[float]] = {False: [], True: []}
    add = 0.0
    for _ in range(marks // per_commit):
        batch = [*islice(known, per_commit)]
        begin = time.thread_time()
        for fingerprint in batch:
            job.add(fingerprint)
        middle, start = time.thread_time(), time.perf_counter()
        job.commit()
        passing = job.marks.passing
        cpu[passing].append((time.thread_time() - middle) * 1e3)
        wall[passing].append((time.perf_counter() - start) * 1e3)
        add += middle - begin
    print(f"{per_commit} marks a commit: {add / marks * 1e6:.2f} µs a mark without the commit")
    for passing, name in (False, "ordinary"), (True, "in a pass"):
        for unit, found in (("CPU", cpu[passing]), ("wall", wall[passing])):
            print(
                f"  {name}, {len(found):,} commits, {unit} ms: median {_part(found, 0.5):.3f}"
                f" p99 {_part(found, 0.99):.2f} max {_part(found, 1):.2f}"
            )
    log = path.with_name(f"{path.name}-wal").stat().st_size
    print(
        f"written {(_written() - written) / marks:.0f} bytes a mark; journal {job.marks.journal:,};"
        f" file {path.stat().st_size / 1e6:.1f} MB, log {log / 1e6:.1f} MB",
        flush=True,
    )
    killed = folder / "killed"
    killed.mkdir()
    job.wait()
    for name in path.name, f"{path.name}-wal":
        shutil.copy(folder / name, killed / name)
    other = _timed("open after a kill", lambda: Store(killed / path.name, fresh, exact=exact))
    pairs = zip(job.filter.slices, other.filter.slices, strict=True)
    same = all(one.blocks == two.blocks and one.items == two.items for one, two in pairs)
    print(f"bits and counts after the kill are the same: {same}", flush=True)
    other.abandon()
    _timed("close", job.close)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"file {path.stat().st_size / 1e6:.1f} MB; peak of both stores {peak:.0f} MB")
    shutil.rmtree(folder)


def _timed(what: str, call: Callable[[], T]) -> T:
    begin, cpu = time.perf_counter(), time.thread_time()
    answer = call()
    print(
        f"{what}: {time.perf_counter() - begin:.2f} s, CPU {time.thread_time() - cpu:.2f} s",
        flush=True,
    )
    return answer


def _fingerprints() -> Iterator[bytes]:
    while True:
        many = os.urandom(20 * 10_000)
        for at in range(0, len(many), 20):
            yield many[at : at + 20]


def _fill(one: LocalFilter, items: int) -> None:
    """Have a filter hold so many items: by chance where that is much."""
    while (missing := items - sum(slice_.items for slice_ in one.slices)) > 0:
        newest = one.slices[-1]
        room = newest.spec.capacity - newest.items
        if min(missing, room) > _TIMED:
            count = min(missing, room) - 1
            _set_by_chance(newest, count)
        else:
            one.add_many(islice(_fingerprints(), min(missing, room + 1)))


def _set_by_chance(slice_: Slice, items: int) -> None:
    """Set about the bits that so many items would set."""
    share = 1 - (1 - 1 / len(slice_.blocks) / 65536) ** (HASHES * items)
    for index in range(len(slice_.blocks)):
        bits = bitarray(endian="big")
        # The or of two random bits is set with a chance of 3/4, their and with 1/4, and so on.
        bits.frombytes(bytes(BLOCK_BYTES))
        for digit in reversed(f"{int(share * 256):08b}"):
            other = bitarray(endian="big")
            other.frombytes(os.urandom(BLOCK_BYTES))
            bits = bits | other if digit == "1" else bits & other
        slice_.writable(index)[:] |= bits
        slice_.dirty.add(index)
    slice_.items += items


def _bytes(one: LocalFilter) -> int:
    return sum(len(slice_.touched()) for slice_ in one.slices) * BLOCK_BYTES


def _written() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def _part(found: list[float], share: float) -> float:
    return sorted(found)[min(len(found) - 1, int(len(found) * share))] if found else 0.0


if __name__ == "__main__":
    main()
