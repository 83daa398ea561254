"""Sub-commands of ``scrapy bloom``, each run as a user runs it: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.fingerprints import BYTES, stream
from bench.harness import spread
from bench.part import Row

_RECORD = b"\0\x14"  # before each fingerprint of 20 bytes in requests.seen of Scrapy 2.19


# Runs a command and writes what it took. A process that is started by a large one counts the memory
# of that one as its own; this one is small.
_WATCH = """
import os, subprocess, sys, time
start = time.perf_counter()
process = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(process.pid, 0)
wall = time.perf_counter() - start
process.returncode = os.waitstatus_to_exitcode(status)
with open(sys.argv[1], "w") as file:
    print(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, file=file)
sys.exit(process.returncode)
"""


class Took(NamedTuple):
    """What one process took.

    Attributes:
        wall: seconds from its start to its end.
        cpu: seconds of processor time.
        peak: its largest resident memory, in bytes.
    """

    wall: float
    cpu: float
    peak: float


def bloom(folder: Path, *arguments: str, output: Path | None = None) -> Took:
    """Run ``scrapy bloom`` with these arguments, outside of any project.

    :param folder: the working directory.
    :param output: file for what it prints; None for nowhere.
    """
    return python(folder, "-m", "scrapy", "bloom", *arguments, output=output)


def python(
    folder: Path, *arguments: str, output: Path | None = None, path: Path | None = None
) -> Took:
    """Run Python, with the packages of this process or with those in one folder only.

    :raises RuntimeError: if it ends with anything but 0 and 1, which says "no".
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    if path:
        environment["PYTHONPATH"] = str(path)
    command = [sys.executable, *(["-S"] if path else []), *arguments]
    taken = folder / "taken.txt"
    watch = [sys.executable, "-I", "-S", "-c", _WATCH, str(taken)]
    with (output or Path(os.devnull)).open("wb") as out:
        done = subprocess.run(watch + command, cwd=folder, env=environment, stdout=out, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command} ended with {done.returncode}")
    return Took(*map(float, taken.read_text().split()))


def often(run: Callable[[], Took], repeats: int) -> Row:
    """Return the median of some runs with its spread: ``wall``, ``cpu`` and ``peak``."""
    return summed([run() for _ in range(repeats)])


def summed(taken: Sequence[Took]) -> Row:
    """Return the median of some runs with its spread: ``wall``, ``cpu`` and ``peak``."""
    row: Row = {}
    for field in Took._fields:
        row |= spread(field, [getattr(one, field) for one in taken])
    return row


def write_seen(path: Path, count: int, seed: int) -> Path:
    """Write so many fingerprints as Scrapy 2.19 keeps them; return the path."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        for _, fingerprint in zip(range(count), stream(seed), strict=False):
            file.write(_RECORD + fingerprint)
    assert path.stat().st_size == count * (len(_RECORD) + BYTES)
    return path


def urls(count: int) -> Iterator[str]:
    """Yield URLs as shops have them, all different, a third of them with a query."""
    for number, fingerprint in zip(range(count), stream(1), strict=False):
        host, product = fingerprint[0], int.from_bytes(fingerprint[1:4], "big")
        query = f"?id={number}&view=list" if number % 3 == 0 else ""
        yield f"https://www.example{host}.com/products/{product}/page-{number}.html{query}"
