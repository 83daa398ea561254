"""Starts Python programs at once: each is a fork of this process, which has imported Scrapy.

For each program a line of JSON comes on the socket that is its standard input: what follows
`python` on a command line, the folder, and the environment. With the line come four files: standard
input, output and error of the program; and one to which its process is told, then "stopped"
whenever it is stopped, and its exit status at the end.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from scrapy.settings import default_settings

REACTOR = "twisted.internet.reactor"
IMPORTED = (
    "scrapy.cmdline",
    "scrapy.commands.check",
    "scrapy.commands.shell",
    "scrapy.core.engine",
    "scrapy.core.scheduler",
    "scrapy.linkextractors",
    "scrapy.squeues",
    "scrapy_bloom.addon",
    "scrapy_bloom.commands",
    "scrapy_bloom.dupefilter",
    "scrapy_bloom.local.frontier",
    "scrapy_bloom.redis.frontier",
    "scrapy_bloom.scheduler",
    "scrapy_redis.scheduler",
    "scrapy_redis.spiders",
    "encodings.idna",
)
"""What many programs need, as far as it is there, besides the parts of Scrapy's settings."""


def parts():
    """Return the modules of the parts that Scrapy's default settings name."""
    for name, value in vars(default_settings).items():
        if name.isupper():
            of_each = [*value, *value.values()] if isinstance(value, dict) else [value]
            for path in of_each:
                if isinstance(path, str) and path.startswith("scrapy."):
                    yield path.rpartition(".")[0]


def next_program():
    """Wait for a program; return its command line, in a process of its own."""
    link = socket.socket(fileno=0)
    while True:
        line, files, _, _ = socket.recv_fds(link, 1 << 16, 4)
        while line and not line.endswith(b"\n"):
            line += link.recv(1 << 16)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # keepers that are done
                pass
        if not line:
            os._exit(0)
        if os.fork() == 0:
            program = os.fork()
            if program:
                keep(program, files)
            link.detach()
            return become(json.loads(line), files)
        for file in files:
            os.close(file)


def keep(program, files):
    """Wait for a program, and tell of it."""
    *standard, told = files
    for file in standard:
        os.close(file)
    os.write(told, b"%d\n" % program)
    while True:
        _, status = os.waitpid(program, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            os.write(told, b"%d\n" % os.waitstatus_to_exitcode(status))
            os._exit(0)
        os.write(told, b"stopped\n")


def become(told, files):
    """Take on what a program is told from outside; return the rest of its command line."""
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    command, folder, environment = told
    os.chdir(folder)
    before = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.environ.clear()
    os.environ.update(environment)
    ours = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = ours + [path for path in sys.path[1:] if path not in before]
    return command


def run(what, *arguments):
    """Run a program as `python` runs it."""
    if what == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = list(arguments)
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(what).parent))
        sys.argv = [what, *arguments]
        runpy.run_path(what, run_name="__main__")


# Whoever imports the reactor installs one, and each program chooses its own.
sys.modules[REACTOR] = None
for name in (*IMPORTED, *parts()):
    with suppress(ImportError):
        import_module(name)
del sys.modules[REACTOR]
# All this stays to the end. A program that walks through it at each collection, and at its own end,
# takes twice as long.
gc.collect()
gc.freeze()
run(*next_program())
