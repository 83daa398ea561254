"""Python programs as processes that run at once, where Scrapy would need most of a second."""

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
    """A program that runs; to be used like a `subprocess.Popen`.

    Args:
        command: what follows `python` on a command line: a path, or ``-m`` and a module; and then
            arguments.
        cwd: its working directory.
        env: its environment, by default that of this process.
        stdout: the path of a file to write its output to, or `subprocess.PIPE`; by default it goes
            nowhere.
        stderr: the same for its errors.

    Attributes:
        pid: its process.
        stdout, stderr: texts to read, where they are pipes.
    """

    def __init__(self, command, *, cwd=".", env=None, stdout=os.devnull, stderr=os.devnull):
        context = processes.workers()
        pipes = [context.Pipe(duplex=False) if out == subprocess.PIPE else None
                 for out in (stdout, stderr)]  # fmt: skip
        self.stdout, self.stderr = (pipe and os.fdopen(os.dup(pipe[0].fileno())) for pipe in pipes)
        outputs = [
            pipe[1] if pipe else str(Path(out).absolute())
            for pipe, out in zip(pipes, (stdout, stderr), strict=True)
        ]
        told = [*map(str, command)], str(Path(cwd).absolute()), dict(env or os.environ), outputs
        self._process = context.Process(target=_become, args=told, daemon=True)
        self._process.start()
        for end in (end for pipe in pipes if pipe for end in pipe):
            end.close()
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
        with open(output, "wb") if isinstance(output, str) else output as file:  # noqa: PTH123
            os.dup2(file.fileno(), number)
    # Without buffers: a signal that comes in mid-write ends Scrapy's handler there, which logs.
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(open(number, "wb", 0), write_through=True)  # noqa: PTH123, SIM115
        for number in (1, 2)
    )
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    what, *arguments = command
    if what == "-m":
        sys.path.insert(0, folder)
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(what).parent))
        sys.argv = [what, *arguments]
        runpy.run_path(what, run_name="__main__")
