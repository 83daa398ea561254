"""The transcripts and pictures of docs/reference/commands.md, made by the commands that they show.

``python docs/transcripts.py`` crawls the tree of python3.11-doc (a Debian package), half of it and
then all, with a Redis of its own, runs every command of the page, and writes what it printed: in
the page between ``<!-- transcript: NAME -->`` and ``<!-- end -->``, as on a terminal in
``docs/terminal/NAME.svg``. It takes a minute.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from scrapy.settings import Settings

from scrapy_bloom.commands import context
from scrapy_bloom.commands.output import Output
from scrapy_bloom.registry import COMMANDS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "commands.md"
PICTURES = ROOT / "docs" / "terminal"
TREE = Path("/usr/share/doc/python3.11/html")
PORT = 8311
SITE = f"http://127.0.0.1:{PORT}"
WIDTH = 110

sys.path[:0] = [str(ROOT / "tests")]
from support.localredis import LocalRedis

MARKED = re.compile(r"<!-- (crawl|transcript): (\S+) -->\n(.*?)(<!-- end -->)", re.DOTALL)
TABLES = ("plan", "info", "check", "queue")  # look otherwise on a terminal


class Server(ThreadingHTTPServer):
    """Waits for nobody at its end."""

    daemon_threads = True
    allow_reuse_address = True


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def site() -> Iterator[None]:
    """Serve the tree."""
    with Server(("127.0.0.1", PORT), partial(Quiet, directory=TREE)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield
        server.shutdown()
        thread.join()


def crawl(folder: Path, **settings: object) -> None:
    """Crawl the tree with the spider of the example project."""
    options = {"JOBDIR": folder / "job", "LOG_LEVEL": "ERROR", "BLOOM_CAPACITY": 1000, **settings}
    command = [sys.executable, "-m", "scrapy", "crawl", "site", "-a", f"url={SITE}/index.html"]
    for name, value in options.items():
        command += ["-s", f"{name}={value}"]
    subprocess.run(command, cwd=ROOT / "example_project", env=environment(), check=True)


def environment() -> dict[str, str]:
    """Return the environment of a command."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(["", str(ROOT)]).lstrip(os.pathsep)}


class Terminal(Output):
    """Draws on a console that is recorded."""

    recorder = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(as_json=as_json)
        self.on_terminal = not as_json

    def lines(self, text: str) -> None:
        """Write lines as they are."""
        self.recorder.print(text.rstrip("\n"), highlight=False, markup=False)

    def done(self, text: str) -> None:
        """Tell what was done."""
        self.recorder.print(text, highlight=False, markup=False)

    note = done

    def _console(self) -> Console:
        return self.recorder


def picture(name: str, line: str, folder: Path, told: dict[str, str]) -> None:
    """Run a command as on a terminal and keep a picture of it."""
    command, *args = shlex.split(filled(line, told).partition("bloom ")[2])
    Terminal.recorder.print(f"[bold]$ {line}[/]", highlight=False)
    errors = io.StringIO()
    before = Path.cwd()
    os.chdir(folder)
    context.Output = Terminal  # type: ignore[misc]
    try:
        with redirect_stderr(errors):
            context.call(command, import_module(COMMANDS[command]), args, Settings())
    finally:
        os.chdir(before)
        context.Output = Output  # type: ignore[misc]
    keep(name, told)


def keep(name: str, told: dict[str, str]) -> None:
    """Write what is on the terminal to a picture."""
    svg = Terminal.recorder.export_svg(title="", unique_id=name)
    (PICTURES / f"{name}.svg").write_text(shown(svg, told))


def transcript(line: str, folder: Path, told: dict[str, str]) -> str:
    """Run a command; return it and what it printed."""
    done = subprocess.run(
        ["bash", "-c", filled(line, told).replace("scrapy ", f"{sys.executable} -m scrapy ")],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    text = f"$ {line}\n{done.stdout}{done.stderr}"
    return shown(text + (f"$ echo $?\n{done.returncode}\n" if done.returncode else ""), told)


def filled(line: str, told: dict[str, str]) -> str:
    """Return a line with the addresses of this run."""
    for name, value in told.items():
        line = line.replace(name, value)
    return line


def shown(text: str, told: dict[str, str]) -> str:
    """Return a text with the addresses that the page shows."""
    for name, value in told.items():
        text = text.replace(value, name)
    own = told["redis://localhost"].removeprefix("redis://")
    return text.replace(own, "localhost:6379/0").replace(f"{os.getpid()}", "4711")


def main() -> None:
    """Make them all."""
    page = PAGE.read_text()
    with TemporaryDirectory() as name, site(), LocalRedis() as redis:
        folder = Path(name)
        told = {"redis://localhost": redis.url}

        def filled_in(marked: re.Match[str]) -> str:
            kind, what, lines, end = marked[1], marked[2], marked[3], marked[4]
            if kind == "crawl":
                crawl(folder, **({"CLOSESPIDER_PAGECOUNT": 100} if what == "half" else {}))
                return marked[0]
            commands = re.findall(r"^\$ (?!echo)(.*)$", lines, re.MULTILINE)
            if what in TABLES:
                picture(what, commands[0], folder, told)
            printed = "".join(transcript(line, folder, told) for line in commands)
            if what not in TABLES:
                Terminal.recorder.print(printed.rstrip("\n"), highlight=False, markup=False)
                keep(what, told)
            return f"<!-- transcript: {what} -->\n```\n{printed}```\n{end}"

        PAGE.write_text(MARKED.sub(filled_in, page))


if __name__ == "__main__":
    main()
