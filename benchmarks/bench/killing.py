"""Crawls by ``scrapy runspider`` in processes of their own, which are killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.part import Row
from bench.scrapy_filters import Settings

SPIDERS = Path(__file__).with_name("spiders.py")
PATIENCE = 60.0
"""Seconds after which a run is ended that has no end; an undisturbed one takes a few."""

Alarm = Callable[[int, Callable[[], object]], object]
"""Takes a number and what to do when the site has answered so many requests more."""


def crawl(url: str, settings: Settings, folder: Path, stops: Iterable[int], alarm: Alarm) -> int:
    """Crawl in a job directory below `folder`, killed after so many answers each; then to the end.

    A run that ends before it is to be killed is the last one. Items go to :func:`items_file`.

    :param alarm: of the site.
    :returns: how many kills met a run.
    """
    kills = 0
    for answers in [*stops, None]:
        if _run(url, settings, folder, answers, alarm) != -signal.SIGKILL:
            break
        kills += 1
    return kills


def items_file(folder: Path) -> Path:
    """Return the file of JSON lines to which a crawl has written its items."""
    return folder / "items.jsonl"


def summed(name: str, crawls: list[Row]) -> Row:
    """Return one row for all crawls with a scheduler."""
    totals = {key: sum(crawl[key] for crawl in crawls) for key in crawls[0]}
    return {"name": name, "crawls": len(crawls), **totals}


def _run(
    url: str, settings: Settings, folder: Path, answers: int | None, alarm: Alarm
) -> int | None:
    """Return the exit status of one run; None if it had no end."""
    watching = {
        "JOBDIR": folder / "job",
        "LOG_FILE": folder / "log.txt",
        "LOG_LEVEL": "WARNING",
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "TELNETCONSOLE_ENABLED": False,
    }
    command = [sys.executable, "-m", "scrapy", "runspider", str(SPIDERS), "-a", f"url={url}"]
    command += ["-o", f"{items_file(folder)}:jsonlines"]
    for name, value in {**watching, **settings}.items():
        command += ["-s", f"{name}={value}"]
    # Scrapy notes each crawl below the user's home.
    environment = os.environ | {"XDG_STATE_HOME": str(folder)}
    with subprocess.Popen(command, cwd=folder, env=environment) as process:
        if answers is not None:
            alarm(answers, process.kill)
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            return None
