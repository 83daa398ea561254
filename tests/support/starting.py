"""Python programs as processes that run at once, where Scrapy would need most of a second."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from threading import Lock

from support.processes import PROGRAMS, environment

_numbers = itertools.count()


class Program:
    """A program that runs; to be used like a `subprocess.Popen`.

    Two starters take turns: of two runs, one after the other, each has a hash seed of its own.

    Args:
        command: what follows `python` on a command line: a path, or ``-m`` and a module; and then
            arguments.
        cwd: its working directory.
        env: its environment, by default that of this process.
        stdout: a file to write its output to, or `subprocess.PIPE`; by default it goes nowhere.
        stderr: the same for its errors.

    Attributes:
        pid: its process.
        stdout, stderr: texts to read, where they are pipes.
        returncode: its exit code, once it is known that it has ended.
    """

    def __init__(self, command, *, cwd=".", env=None, stdout=None, stderr=None):
        told = [*map(str, command)], str(Path(cwd).absolute()), dict(env or os.environ)
        line = json.dumps(told).encode() + b"\n"
        with ExitStack() as stack:
            nothing = stack.enter_context(Path(os.devnull).open("r+b"))
            self.stdout, output = _opened(stdout or nothing, stack)
            self.stderr, errors = _opened(stderr or nothing, stack)
            self._told, told = _pipe(stack)
            starter = _starter(next(_numbers) % 2)
            sent = socket.send_fds(starter, [line], [nothing.fileno(), output, errors, told])
            starter.sendall(line[sent:])
        self._lock = Lock()
        self.returncode = None
        process, *more = os.read(self._told, 1000).split()
        self.pid = int(process)
        self._note(more)

    def __del__(self):
        os.close(self._told)

    def poll(self):
        """Return its exit code if it has ended."""
        with self._lock:
            while self.returncode is None and self._tells(0):
                self._note(os.read(self._told, 1000).split())
        return self.returncode

    def wait(self, timeout=None):
        """Wait for its end; return its exit code."""
        while self.poll() is None:
            if not self._tells(timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.returncode

    def send_signal(self, number):
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def freeze(self):
        """Stop it, and wait until it stands still: from then on it sends nothing."""
        with self._lock:
            os.kill(self.pid, signal.SIGSTOP)
            while not self._note(os.read(self._told, 1000).split()):
                assert self.returncode is None

    def _tells(self, seconds):
        return bool(select.select([self._told], [], [], seconds)[0])

    def _note(self, words):
        """Take down what is told of it; return whether it was stopped."""
        if words and words[-1] != b"stopped":
            self.returncode = int(words[-1])
        return b"stopped" in words


def _pipe(stack):
    """Return the ends to read and to write; the stack closes the second."""
    read, write = os.pipe()
    stack.callback(os.close, write)
    return read, write


def _opened(file, stack):
    """Return a text to read if a pipe is asked for, and the number of a file to write."""
    if file != subprocess.PIPE:
        return None, file.fileno()
    read, write = _pipe(stack)
    return os.fdopen(read), write


@cache
def _starter(_):
    """Start a process that programs are forks of; return the socket on which it listens."""
    ours, its = socket.socketpair()
    with its:
        # Without buffers: a signal that comes in mid-write ends Scrapy's handler there, which logs.
        line = [sys.executable, "-u", str(PROGRAMS / "starter.py")]
        process = subprocess.Popen(line, stdin=its, stdout=subprocess.DEVNULL, env=environment())
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours
