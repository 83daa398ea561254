"""The results as JSON: of each part its rows, and the machine and the versions.

Parts may have been run at different times; each carries its own setting.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.part import Part, Rows

KEPT = Path(__file__).parents[1] / "results.json"
"""The full results, which the docs show."""

ALWAYS = ("scrapy-bloom", "bitarray", "mmh3")
"""Distributions whose versions belong to every result."""

Result = dict[str, Any]
"""Of one part: quick, date, seconds, load, machine, versions, tables.

The load is the system's average over the last 15 minutes; results from before it was kept lack it.
"""


def record(part: Part, rows: Rows, *, quick: bool, seconds: float) -> Result:
    """Return the results of a part with all that they depend on."""
    return {
        "quick": quick,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "seconds": round(seconds),
        "load": round(os.getloadavg()[2], 1),
        "machine": machine(),
        "versions": {"Python": platform.python_version(), **versions(*ALWAYS, *part.packages)},
        "tables": {name: [dict(row) for row in each] for name, each in rows.items()},
    }


def read(path: Path = KEPT) -> dict[str, Result]:
    """Return the results of all parts that a file has, by name."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def write(results: Mapping[str, Result], path: Path) -> None:
    """Write a file of results, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def versions(*packages: str) -> dict[str, str]:
    """Return the version of each distribution; one that is missing is left out."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Return what the results were measured on."""
    return {
        "processor": _from("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(_from("/proc/meminfo", "MemTotal").split()[0] or 0) / 1e6),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _from(path: str, field: str) -> str:
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return "0"
