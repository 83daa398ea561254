"""Stop and resume a job of 10,000,000 URLs: ours, and Scrapy's own filter with requests.seen.

Each opening is a process of its own, so that its memory is its own too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from harness import setting, show

from scrapy_bloom.job.directory import JobFilter, OnUnclean
from scrapy_bloom.job.snapshot import Identity


def open_ours(folder: Path, urls: int) -> JobFilter:
    """Open the job with our filter."""
    return JobFilter(
        folder,
        Identity("bench", "bench"),
        capacity=urls,
        error_rate=1e-6,
        digests=True,
        on_unclean=OnUnclean.FAIL,
    )


def ours(folder: Path, urls: int) -> dict[str, float]:
    """Open and close the job with our filter."""
    start = perf_counter()
    job = open_ours(folder, urls)
    opened = perf_counter()
    job.close()
    return {"open": opened - start, "close": perf_counter() - opened}


def scrapys(folder: Path, _urls: int) -> dict[str, float]:
    """Open and close the job with Scrapy's filter."""
    from scrapy.dupefilters import RFPDupeFilter  # noqa: PLC0415 - its memory is not ours

    start = perf_counter()
    dupefilter = RFPDupeFilter(str(folder))
    opened = perf_counter()
    dupefilter.close("finished")
    return {"open": opened - start, "close": perf_counter() - opened}


def resident() -> int:
    """Return the peak resident memory of this process so far, in bytes."""
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def child(name: str, folder: Path, urls: int) -> dict[str, float]:
    """Run one candidate in a process of its own."""
    command = [sys.executable, __file__, "--run", name, "--urls", str(urls), str(folder)]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--urls", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--run", choices=["ours", "scrapys"], help=argparse.SUPPRESS)
    parser.add_argument("folder", nargs="?", type=Path)
    arguments = parser.parse_args()
    if arguments.run:
        before = resident()
        result = {"ours": ours, "scrapys": scrapys}[arguments.run](arguments.folder, arguments.urls)
        print(json.dumps(result | {"memory": resident() - before}))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folders = {"ours": Path(temporary, "ours"), "scrapys": Path(temporary, "scrapys")}
        folders["scrapys"].mkdir()
        job = open_ours(folders["ours"], arguments.urls)
        with (folders["scrapys"] / "requests.seen").open("wb") as file:
            for _ in range(arguments.urls):
                fingerprint = os.urandom(20)
                job.add(fingerprint)
                file.write(b"\0\x14" + fingerprint)
        job.close()
        sizes = {name: sum(p.stat().st_size for p in f.iterdir()) for name, f in folders.items()}
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in folders}
        for _ in range(arguments.repeats):
            for name, folder in folders.items():
                runs[name].append(child(name, folder, arguments.urls))
    print(setting("Scrapy", "bitarray"))
    show(
        f"A job of {arguments.urls:,} URLs, median of {arguments.repeats}",
        ("filter", "open, s", "store at close, s", "memory, MB", "on disk, MB"),
        [
            (
                {"ours": "scrapy-bloom", "scrapys": "Scrapy's RFPDupeFilter"}[name],
                *(f"{median(run[key] for run in runs[name]):.2f}" for key in ("open", "close")),
                f"{median(run['memory'] for run in runs[name]) / 1e6:,.0f}",
                f"{sizes[name] / 1e6:,.0f}",
            )
            for name in folders
        ],
    )


if __name__ == "__main__":
    main()
