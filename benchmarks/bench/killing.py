"""Crawls by ``scrapy runspider`` in processes of their own, which are killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Timer

from bench.scrapy_filters import Settings

SPIDERS = Path(__file__).with_name("spiders.py")
EXTENSIONS = json.dumps({"bench.spiders.UnderWay": 0})
PATIENCE = 60.0
"""Seconds after which a run is ended that has no end; an undisturbed one takes a few."""

Alarm = Callable[[int, Callable[[], object]], object]
"""Takes a number and what to do when the site has answered so many requests more."""


@dataclass(frozen=True)
class Stop:
    """When a run is killed.

    Attributes:
        answers: so many requests after its start; None: at `seconds` after its start.
        seconds: so much later.
    """

    answers: int | None
    seconds: float


def random_stops(random: Random, kills: int, answers: int) -> list[Stop]:
    """Return moments for kills: one in five while a run starts, the others somewhere in the crawl.

    :param answers: the most answers from one start to the next kill.
    """
    return [
        Stop(None, random.uniform(0.5, 4))
        if random.random() < 0.2
        else Stop(random.randint(1, answers), random.uniform(0, 0.1))
        for _ in range(kills)
    ]


def crawl(
    url: str, settings: Settings, folder: Path, stops: Sequence[Stop], alarm: Alarm
) -> list[int]:
    """Crawl in a job directory below `folder`, killed as `stops` say; then to the end.

    A run that ends before it is to be killed is the last one. Items go to :func:`items_file`.

    :param alarm: of the site.
    :returns: for each kill that met a run, the requests that the engine had.
    """
    under_way = []
    for stop in [*stops, None]:
        if _run(url, settings, folder, stop, alarm) != -signal.SIGKILL:
            break
        under_way.append((folder / "under-way").read_bytes()[0])
    return under_way


def items_file(folder: Path) -> Path:
    """Return the file of JSON lines to which a crawl has written its items."""
    return folder / "items.jsonl"


def _run(url: str, settings: Settings, folder: Path, stop: Stop | None, alarm: Alarm) -> int | None:
    """Return the exit status of one run; None if it had no end."""
    watching = {
        "JOBDIR": folder / "job",
        "UNDER_WAY_FILE": folder / "under-way",
        "EXTENSIONS": EXTENSIONS,
        "LOG_FILE": folder / "log.txt",
        "LOG_LEVEL": "WARNING",
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "TELNETCONSOLE_ENABLED": False,
    }
    command = [sys.executable, "-m", "scrapy", "runspider", str(SPIDERS), "-a", f"url={url}"]
    command += ["-o", f"{items_file(folder)}:jsonlines"]
    for name, value in {**watching, **settings}.items():
        command += ["-s", f"{name}={value}"]
    (folder / "under-way").write_bytes(b"\0")
    # It may not lie where relative paths lead; and Scrapy notes each crawl below the user's home.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "XDG_STATE_HOME": str(folder),
    }
    with subprocess.Popen(command, cwd=folder, env=environment) as process:
        timer = None
        if stop is not None:
            do = process.kill
            if stop.answers is None:
                timer = Timer(stop.seconds, do)
                timer.start()
            else:
                alarm(stop.answers, Timer(stop.seconds, do).start)
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            return None
        finally:
            if timer is not None:
                timer.cancel()
