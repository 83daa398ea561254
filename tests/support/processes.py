"""Python processes that tests start and wait for."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

from support.waiting import PATIENCE

TESTS = Path(__file__).parents[1]


@cache
def workers():
    """Return what starts functions in processes that share nothing with this one.

    They are forks of a process that has imported what they need.
    """
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["support.preload"])
    with mock.patch.dict(os.environ, environment()):  # where it finds that
        forkserver.ensure_running()
    return forks


def environment():
    """Return one in which a process can import the tests' helpers."""
    paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run_line(line):
    """Run a line of Python to its end; return what came of it."""
    return subprocess.run(
        [sys.executable, "-c", line],
        env=environment(),
        cwd=TESTS,  # which comes first on its sys.path: not the folder with the sources
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
