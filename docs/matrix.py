"""Stops, kills and resumes crawls on each Python that is found and each minor version of Scrapy.

``make matrix`` runs it with the wheel that it has built. Each pair of versions gets an environment
of its own in ``.venv-matrix``. What came out is kept in ``docs/matrix.json``, from which
``docs/tables.py`` makes the table of docs/reference/versions.md. Pairs that were not run this time
keep what they had.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "matrix.json"
HOMES = ROOT / ".venv-matrix"

OLDEST_PYTHON = 10
OLDEST_SCRAPY = (2, 13)

SMOKE = {
    "stop and resume": [
        "crawls/test_crawls.py::test_a_crawl_stopped_and_resumed_misses_nothing_and_repeats_nothing",
        "crawls/test_scheduler.py::test_a_stopped_crawl_resumes_where_it_was",
    ],
    "kill and resume": [
        "kills/test_frontier_kills.py::test_nothing_is_lost_however_often_a_crawl_is_killed[plain]",
    ],
    "Redis, stop and resume": [
        "crawls/test_shared_frontier.py::test_a_crawl_that_is_stopped_is_resumed_by_the_next_worker",
    ],
    "Redis, kill a worker": [
        "crawls/test_shared_crawls.py::test_requests_of_a_killed_worker_are_fetched_by_another_one",
    ],
    "scrapy-redis": [
        "crawls/test_shared_crawls.py::test_three_scrapy_redis_workers_fetch_each_page_once"
    ],
}
"""Columns of the table, and the tests that they stand for."""

NEEDED = ("hypothesis", "pytest", "pytest-twisted", "scrapy-redis>=0.9")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path, help="the package")
    parser.add_argument("--python", nargs="*", default=[], help="names, such as python3.12")
    parser.add_argument("--scrapy", nargs="*", default=[], help="minor versions, such as 2.16")
    arguments = parser.parse_args()
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    bad = False
    for python in arguments.python or pythons():
        for minor in arguments.scrapy or minors():
            row = run(python, minor, arguments.wheel)
            kept = [other for other in kept if pair_of(other) != pair_of(row)] + [row]
            bad = bad or "no" in row["columns"].values()
            kept.sort(key=pair_of)
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
            print(row["python"], row["scrapy"], *row["columns"].values(), flush=True)
    sys.exit(bad)


def pair_of(row: dict[str, str]) -> tuple[list[int], list[int]]:
    """Return the minor versions of a row, to sort by."""
    python, scrapy = ([int(n) for n in re.findall(r"\d+", row[of])[:2]] for of in VERSIONS)
    return python, scrapy


VERSIONS = ("python", "scrapy")


def pythons() -> Iterator[str]:
    """Yield the Pythons that are found, by their names."""
    for minor in range(OLDEST_PYTHON, 20):
        name = f"python3.{minor}"
        # A name may be there and start nothing, as those of pyenv do.
        if (
            shutil.which(name)
            and not subprocess.run(
                [name, "-c", ""], stderr=subprocess.DEVNULL, check=False
            ).returncode
        ):
            yield name


def minors() -> list[str]:
    """Return the minor versions of Scrapy that pip finds, oldest first."""
    asked = [sys.executable, "-m", "pip", "index", "versions", "scrapy"]
    output = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    versions = {(int(a), int(b)) for a, b in re.findall(r"\b(\d+)\.(\d+)\.\d+\b", output)}
    return [f"{a}.{b}" for a, b in sorted(versions) if (a, b) >= OLDEST_SCRAPY]


def run(python: str, minor: str, wheel: Path) -> dict[str, object]:
    """Run the tests on one pair of versions; return a row."""
    home = HOMES / f"{python}-{minor}"
    inside = home / "bin" / "python"
    row = {"python": python.removeprefix("python"), "scrapy": minor}
    row["date"] = datetime.now(timezone.utc).date().isoformat()
    try:
        if not (home / "ready").exists():
            subprocess.run([python, "-m", "venv", "--clear", home], check=True)
            install(
                inside, f"scrapy-bloom[redis] @ {wheel.resolve().as_uri()}", *NEEDED, minor=minor
            )
            (home / "ready").touch()
        install(inside, "--force-reinstall", "--no-deps", str(wheel))
    except subprocess.CalledProcessError:
        return row | {"columns": dict.fromkeys(SMOKE, "not installable")}
    version = subprocess.run(
        [inside, "-c", "import scrapy, sys; print(sys.version.split()[0], scrapy.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    row |= dict(zip(VERSIONS, version, strict=True))
    report = home / "report.xml"
    report.unlink(missing_ok=True)
    tests = [f"tests/{test}" for column in SMOKE.values() for test in column]
    subprocess.run(
        [inside, "-m", "pytest", "-q", f"--junitxml={report}", *tests],
        cwd=ROOT,
        check=False,
    )
    return row | {"columns": columns(report)}


def install(inside: Path, *what: str, minor: str = "") -> None:
    """Install packages into an environment."""
    pip = [inside, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    subprocess.run([*pip, *what, *([f"scrapy~={minor}.0"] if minor else [])], check=True)


def columns(report: Path) -> dict[str, str]:
    """Return for each column whether all of its tests passed."""
    passed: dict[str, bool] = {}
    cases = ET.parse(report).iter("testcase") if report.exists() else []  # noqa: S314 - of pytest
    for case in cases:
        *_, folder, module = case.get("classname", "").split(".")
        name = f"{folder}/{module}.py::{case.get('name')}"
        bare = name.partition("[")[0]
        for key in {name, bare}:
            passed[key] = passed.get(key, True) and not len(case)
    return {
        column: "yes" if all(passed.get(test) for test in tests) else "no"
        for column, tests in SMOKE.items()
    }


if __name__ == "__main__":
    main()
