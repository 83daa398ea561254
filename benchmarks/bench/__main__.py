"""Run the benchmarks: all of them, or the parts that are named.

Each part runs in a process of its own, one after another. Full results are kept in
benchmarks/results.json and shown in docs; quick ones on the screen only.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from demo import SCREEN

from bench import results
from bench.part import Part, Scale
from bench.parts import PARTS
from bench.results import Result

ROOT = Path(__file__).parents[2]


def run(part: Part, scale: Scale) -> Result:
    """Measure one part in this process."""
    logging.getLogger("scrapy_bloom").setLevel(logging.ERROR)  # filters grow
    start = monotonic()
    rows = part.run(scale)
    return results.record(part, rows, quick=scale.quick, seconds=monotonic() - start)


def run_apart(part: Part, scale: Scale) -> Result:
    """Measure one part in a process of its own."""
    print(f"{part.name} ...", flush=True)
    with TemporaryDirectory() as folder:
        file = Path(folder, "result.json")
        command = [sys.executable, "-m", "bench", part.name, "--into", str(file)]
        subprocess.run(command + ["--quick"] * scale.quick, check=True)
        result = results.read(file)[part.name]
    print(f"{part.name}: {result['seconds']} s", flush=True)
    return result


def show(part: Part, result: Result) -> None:
    """Print the tables of a part."""
    for spec in part.tables:
        rows = [[column.title for column in spec.columns]]
        rows += [
            [column.show(row) for column in spec.columns] for row in result["tables"][spec.name]
        ]
        SCREEN.print(f"{part.name}: {spec.title}")
        SCREEN.table(*map(tuple, rows))


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a few seconds for each part")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.parts if name not in PARTS]:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    parts = [PARTS[name] for name in arguments.parts or PARTS]
    scale = Scale(quick=arguments.quick)
    if arguments.into:
        results.write({part.name: run(part, scale) for part in parts}, arguments.into)
        return
    start = monotonic()
    found = {part.name: run_apart(part, scale) for part in parts}
    for part in parts:
        show(part, found[part.name])
    if not scale.quick:
        results.write(results.read() | found, results.KEPT)
        subprocess.run([sys.executable, str(ROOT / "docs" / "tables.py"), "--write"], check=True)
        subprocess.run([sys.executable, "-m", "bench.plots"], check=True)
    print(f"{monotonic() - start:.0f} s in all")


if __name__ == "__main__":
    main()
