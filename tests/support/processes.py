"""Python processes that tests start and wait for."""

import io
import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
from functools import cache
from multiprocessing import connection, forkserver
from pathlib import Path
from tempfile import mkdtemp
from threading import Lock
from unittest import mock

from support.waiting import PATIENCE, until

TESTS = Path(__file__).parents[1]

CHOSEN = "SCHEDULER = 'scrapy.core.scheduler.Scheduler': this run is not protected"


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
    paths = str(TESTS), str(TESTS.parent / "example_project"), os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run_line(line):
    return subprocess.run(
        [sys.executable, "-c", line],
        env=environment(),
        cwd=TESTS,  # which comes first on its sys.path: not the folder with the sources
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


class Run:
    """A command that runs at once, where `scrapy` would need most of a second.

    Args:
        folder: its working directory, below which its output and its log are, too.
        command: what follows ``python -m`` on a command line: a module, and then arguments.
        environment: its environment.

    Attributes:
        pid: its process.
    """

    def __init__(self, folder, command, environment):
        logs = Path(mkdtemp(dir=folder, prefix="log-"))
        self._files, self._lock = (logs / "output", logs / "errors"), Lock()
        for file in self._files:
            file.touch()
        told = [*map(str, command)], str(folder), environment, self._files
        self._process = workers().Process(target=_become, args=told, daemon=True)
        self._process.start()
        self.pid = self._process.pid

    def send_signal(self, number):
        """Send it a signal, if it has not ended."""
        if not self.ended:
            os.kill(self.pid, number)

    def interrupt(self):
        self.send_signal(signal.SIGINT)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def freeze(self):
        """Stop it, and wait until it stands still: from then on it sends nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        state = Path(f"/proc/{self.pid}/stat")
        until(lambda: state.read_text().rpartition(") ")[2][0] == "T")

    def said(self, *texts):
        """Wait until it writes a line with one of these texts to its log."""
        until(lambda: any(text in self.log for text in texts) or self.ended)
        assert any(text in self.log for text in texts), f"none of {texts!r}:\n{self.log}"

    def end(self):
        """Wait for its end; return its exit code."""
        ended = connection.wait([self._process.sentinel], PATIENCE)
        assert ended, f"did not end in time:\n{self.log}"
        return self._exit_code

    def complete(self):
        """Wait for a crawl that is to end by itself, and without a mishap."""
        assert self.end() == 0, self.log
        assert self.reason == "finished", self.log
        assert "Traceback" not in self.log, self.log

    @property
    def ended(self):
        return self._exit_code is not None

    @property
    def _exit_code(self):
        with self._lock:
            return self._process.exitcode

    @property
    def output(self):
        return self._files[0].read_text()

    @property
    def log(self):
        return self._files[1].read_text(errors="replace")  # it may be writing

    def logged(self, level):
        """List the lines of a level in its log, without time and name.

        Not that a test has chosen Scrapy's scheduler.
        """
        mark = f"] {level}: "
        lines = [line.partition(mark)[2] for line in self.log.splitlines() if mark in line]
        return [line for line in lines if not line.startswith(CHOSEN)]

    @property
    def reason(self):
        """The reason with which its spider was closed, empty if it was not."""
        return self.log.partition("Spider closed (")[2].partition(")")[0]

    def stat(self, key):
        """Return a number from the closing dump; 0 if it is not there."""
        dump = self.log.partition("Dumping Scrapy stats:")[2]
        assert dump
        number = re.search(rf"'{re.escape(key)}': ([-\d.e]+)[,}}]", dump)
        return float(number[1]) if number else 0


def _become(command, folder, environment, outputs):
    """Run a program as `python` runs it, in this process."""
    for number, output in enumerate(outputs, 1):
        with output.open("wb") as file:
            os.dup2(file.fileno(), number)
    # Without buffers: a signal that comes in mid-write ends Scrapy's handler there, which logs.
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(open(number, "wb", 0), write_through=True)  # noqa: PTH123, SIM115
        for number in (1, 2)
    )
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = command
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
