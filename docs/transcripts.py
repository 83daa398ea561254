"""The transcripts of docs/reference/commands.md, made by the commands that they show.

``python docs/transcripts.py`` crawls the tree of python3.11-doc (a Debian package), half of it and
then all, with a Redis of its own, runs every command of the page, and writes what it printed in
the page between ``<!-- transcript: NAME -->`` and ``<!-- end -->``. It takes a minute.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "commands.md"
TREE = Path("/usr/share/doc/python3.11/html")
PORT = 8311
SITE = f"http://127.0.0.1:{PORT}"

sys.path[:0] = [str(ROOT / "tests")]
from support.localredis import LocalRedis

MARKED = re.compile(r"<!-- (crawl|transcript): (\S+) -->\n(.*?)(<!-- end -->)", re.DOTALL)


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
            printed = "".join(transcript(line, folder, told) for line in commands)
            return f"<!-- transcript: {what} -->\n```\n{printed}```\n{end}"

        PAGE.write_text(MARKED.sub(filled_in, page))


if __name__ == "__main__":
    main()
