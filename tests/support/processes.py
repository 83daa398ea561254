"""Python processes that tests start and wait for."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from pathlib import Path

from support.waiting import PATIENCE

HERE = Path(__file__).parent


def freeze(process: subprocess.Popen[bytes]) -> None:
    """Stop a child process, and wait until it stands still: from then on it sends nothing."""
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


@cache
def workers() -> BaseContext:
    """Return what starts functions in processes that share nothing with this one.

    They are forks of a process that has imported what they need, where the system has forks.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["support.preload"])
    before = dict(os.environ)
    os.environ.update(environment())  # where it finds that
    forkserver.ensure_running()
    os.environ.clear()
    os.environ.update(before)
    return forks


def environment() -> dict[str, str]:
    """Return one in which a process can import the tests' helpers."""
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run_line(line: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run one line of Python to its end; return what it printed."""
    return run("-c", line, *arguments)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments to its end; return what it printed."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment(),
        cwd=HERE.parent,  # which comes first on its sys.path: not the folder with the sources
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
