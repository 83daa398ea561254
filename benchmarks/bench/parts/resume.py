"""Stopping and resuming a job of millions of pages."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

from bench.apart import apart
from bench.fingerprints import resident, stream
from bench.harness import in_turn, spread
from bench.part import Column, Part, Row, Rows, Scale, Table

SCRAPY, OURS = "Scrapy's own, requests.seen", "scrapy-bloom"


def run(scale: Scale) -> Rows:
    """Make a job with each filter, then open and close it in turn."""
    urls = scale.of(5_000_000, 50_000)
    with TemporaryDirectory() as temporary:
        folders = {name: Path(temporary, str(number)) for number, name in enumerate((SCRAPY, OURS))}
        folders[SCRAPY].mkdir()
        apart(make, folders, urls)
        sizes = {n: sum(p.stat().st_size for p in f.iterdir()) for n, f in folders.items()}
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in folders}
        for number in range(scale.of(5, 2)):
            for name in in_turn(list(folders), number):
                runs[name].append(apart(reopen, name, folders[name], urls))
    rows: list[Row] = []
    for name, each in runs.items():
        row: Row = {"name": name, "urls": urls, "disk": sizes[name]}
        for key in ("open", "open_cpu", "close"):
            row |= spread(key, [one[key] for one in each])
        rows.append(row | {"memory": median(one["memory"] for one in each)})
    return {"resume": rows}


def make(folders: dict[str, Path], urls: int) -> None:
    """Store the same fingerprints in both ways."""
    job = open_ours(folders[OURS], urls)
    with (folders[SCRAPY] / "requests.seen").open("wb") as file:
        for fingerprint, _ in zip(stream(1), range(urls), strict=False):
            job.filter.add(fingerprint)
            file.write(b"\0\x14" + fingerprint)  # as Scrapy 2.19 writes it
    job.close()


def open_ours(folder: Path, urls: int) -> Any:
    """Open the job with our filter."""
    from scrapy_bloom.options import OnUnclean
    from scrapy_bloom.storage.snapshot import Identity
    from scrapy_bloom.storage.store import JobStore

    return JobStore(
        folder,
        Identity("bench", "bench"),
        capacity=urls,
        error_rate=1e-6,
        digests=True,
        on_unclean=OnUnclean.FAIL,
    )


def reopen(name: str, folder: Path, urls: int) -> dict[str, float]:
    """Open and close a job in this process."""
    from scrapy.dupefilters import RFPDupeFilter

    from scrapy_bloom.storage import store

    assert store  # imported before the clock starts
    before = resident()
    start, cpu = perf_counter(), process_time()
    dupefilter: Any = open_ours(folder, urls) if name == OURS else RFPDupeFilter(str(folder))
    opened, opened_cpu = perf_counter(), process_time()
    memory = resident() - before
    dupefilter.close() if name == OURS else dupefilter.close("finished")
    close = perf_counter() - opened
    return {"open": opened - start, "open_cpu": opened_cpu - cpu, "close": close, "memory": memory}


PART = Part(
    name="resume",
    title="Stop and resume",
    method="""\
A job of 5,000,000 pages is opened and closed again, each time by a process of its own. Scrapy's own
filter reads `requests.seen`, to which it has written each fingerprint when it came; ours reads its
bits, and writes all of them when it closes.
""",
    packages=("Scrapy", "filelock"),
    run=run,
    tables=(
        Table(
            "resume",
            "Opening and closing a job",
            (
                Column("name", "filter"),
                Column("urls", "URLs", ","),
                Column("open", "open, s wall", ".3f", spread=True),
                Column("open_cpu", "open, s CPU", ".3f"),
                Column("close", "store at close, s wall", ".3f", spread=True),
                Column("memory", "memory, MB", ",.0f", 1e6),
                Column("disk", "on disk, MB", ",.0f", 1e6),
            ),
        ),
    ),
)
