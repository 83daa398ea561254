"""Python modules as processes that run at once, where Scrapy would need most of a second."""

from __future__ import annotations

import io
import os
import runpy
import signal
import subprocess
import sys
from multiprocessing import connection
from pathlib import Path
from threading import Lock

from support import processes
from support.waiting import until


class Program:
    """A program that runs.

    Args:
        command: what follows ``python -m`` on a command line: a module, and then arguments.
        folder: its working directory.
        environment: its environment.
        output: the path of a file for what it prints.
        errors: the path of a file for its errors.

    Attributes:
        pid: its process.
    """

    def __init__(self, command, folder, environment, output, errors):
        told = [*map(str, command)], str(folder), environment, (str(output), str(errors))
        self._process = processes.workers().Process(target=_become, args=told, daemon=True)
        self._process.start()
        self.pid = self._process.pid
        self._lock = Lock()

    def poll(self):
        """Return its exit code if it has ended."""
        with self._lock:
            return self._process.exitcode

    def wait(self, timeout=None):
        """Wait for its end; return its exit code."""
        if not connection.wait([self._process.sentinel], timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.poll()

    def send_signal(self, number):
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def freeze(self):
        """Stop it, and wait until it stands still: from then on it sends nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        state = Path(f"/proc/{self.pid}/stat")
        until(lambda: state.read_text().rpartition(") ")[2][0] == "T")


def _become(command, folder, environment, outputs):
    """Run a program as `python` runs it, in this process."""
    for number, output in enumerate(outputs, 1):
        with open(output, "wb") as file:  # noqa: PTH123
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
