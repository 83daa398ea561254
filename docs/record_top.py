"""Record what ``scrapy bloom top`` shows of a fleet, one worker of which was killed and one frozen.

``PYTHONPATH=example_project python docs/record_top.py docs/plots/top.svg`` draws it: a minute, on a
Redis and a site of its own. ``--live`` shows it on this terminal instead. The site is a proxy for
all hosts.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from scrapy import Request, Spider
from scrapy.settings import Settings
from testbed.localredis import LocalRedis

from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.runner import call
from scrapy_bloom.commands.screen import view
from scrapy_bloom.commands.target import target_of
from scrapy_bloom.commands.top import Rates

KEY = "books:books:bloom"
HOSTS = {name: delay for delay, *names in (
    (0.1, "books.example", "music.example"),
    (0.2, "films.example", "games.example"),
    (1.0, "shop.example"),
) for name in names}  # fmt: skip
SETTINGS = {
    "ADDONS": '{"scrapy_bloom.Addon": 500}',
    "BOT_NAME": "books",
    "BLOOM_REDIS_KEY": KEY,
    "BLOOM_RETRY_AFTER": "2m",
    "DOWNLOAD_DELAY": "0.1",
    "RANDOMIZE_DOWNLOAD_DELAY": "0",
    "RETRY_TIMES": "0",
    "LOG_LEVEL": "INFO",
}
WIDTH, HEIGHT = 84, 30
KILLED, FROZEN, RECORDED = 12, 36, 52  # seconds after the start; a lease takes 30
THEME = TerminalTheme(
    (30, 30, 30),
    (212, 212, 212),
    [(0, 0, 0), (241, 112, 103), (94, 207, 165), (229, 192, 90)] + [(120, 160, 220)] * 4,
)
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="-16 -12 {terminal_width} {terminal_height}">'
    "<style>{styles}\ntext{{font:20px monospace;white-space:pre}}</style>"
    '<rect x="-16" y="-12" width="100%" height="100%" rx="8" fill="#1e1e1e"/>{matrix}</svg>\n'
)
NOT_FOUND, AWAY = 23, 41  # of so many pages one
BROKEN_FROM = 40  # number of a page of the host that asks to be left alone


class Site(BaseHTTPRequestHandler):
    """Answers for all hosts: a tree of pages with a menu; some fail."""

    def do_GET(self) -> None:
        """Serve one page."""
        host, number = urlsplit(self.path).hostname or "", int(urlsplit(self.path).path[1:] or 0)
        time.sleep(0.3)
        if host == "games.example" and number > BROKEN_FROM:
            self.send_response(503)
            self.send_header("Retry-After", "120")
        else:
            missing, away = not (number + 1) % NOT_FOUND, not (number + 1) % AWAY
            self.send_response(404 if missing else 503 if away else 200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        menu = range(1, 9)
        links = [f"/{page}" for page in (*menu, *range(4 * number + 1, 4 * number + 5))]
        links += [f"http://{name}/" for name in HOSTS] * (not number)
        with suppress(ConnectionError):  # a worker was killed
            self.wfile.write("".join(f'<a href="{link}">' for link in links).encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Books(Spider):
    """Follows every link."""

    name = "books"
    custom_settings = {  # noqa: RUF012 - as Scrapy declares it
        "DOWNLOAD_SLOTS": {name: {"delay": delay} for name, delay in HOSTS.items()}
    }

    async def start(self) -> Any:
        """Ask for the front page of the first host."""
        yield Request(f"http://{next(iter(HOSTS))}/")

    def parse(self, response: Any) -> Any:
        """Follow the links of a page."""
        if response.url.endswith("77"):
            raise ValueError("no title")
        yield from response.follow_all(css="a")


def worker(server: LocalRedis, site: ThreadingHTTPServer, folder: str) -> subprocess.Popen[bytes]:
    """Start a worker."""
    command = [sys.executable, "-m", "scrapy", "runspider", str(Path(__file__).resolve())]
    for setting in ({"BLOOM_REDIS_URL": server.url} | SETTINGS).items():
        command += ["-s", "=".join(setting)]
    proxy = {"http_proxy": f"http://127.0.0.1:{site.server_port}", "XDG_STATE_HOME": folder}
    with Path(folder, "log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env=os.environ | proxy, stderr=log)


def wait(server: LocalRedis) -> None:
    """Wait until there is a crawl."""
    while not server.client().exists(KEY):
        time.sleep(0.1)


def record(server: LocalRedis, workers: list[subprocess.Popen[bytes]], path: Path) -> None:
    """Watch the fleet for a while, and draw the last view."""
    target, rates = target_of(Project(Settings()), f"{server.url}#{KEY}"), Rates()
    wait(server)
    begin, facts = time.monotonic(), {}
    events = {KILLED: (workers[0], SIGKILL), FROZEN: (workers[1], SIGSTOP)}
    for second in range(0, RECORDED, 2):
        time.sleep(max(0.0, begin + second - time.monotonic()))
        facts = rates.add(target.look())
        if second in events:
            process, signal = events[second]
            process.send_signal(signal)
    facts["target"] = f"Redis at localhost:6379/0, key {KEY}"
    for row in facts["workers"]:
        numbers = {str(process.pid): n for n, process in enumerate(workers, 1)}
        row["name"] = f"crawler-{numbers[row['name'].split(':')[-2]]}:4711:x"
    title, rest = "[bold green]$[/] scrapy bloom top\n", view(facts, WIDTH)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(title, rest, "\n")
    drawn = console.export_svg(theme=THEME, code_format=SVG, unique_id="t")
    path.write_text(re.sub(r' clip-path="[^"]*"', "", drawn), "utf-8")


def main() -> None:
    """Run the fleet."""
    site = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    site.daemon_threads = True
    Thread(target=site.serve_forever, daemon=True).start()
    workers = []
    with TemporaryDirectory() as folder, LocalRedis() as server:
        try:
            workers = [worker(server, site, folder) for _ in range(4)]
            if sys.argv[1] == "--live":
                print(*(each.pid for each in workers), file=sys.stderr)
                wait(server)
                sys.exit(call("top", [f"{server.url}#{KEY}", *sys.argv[2:]], Settings()))
            record(server, workers, Path(sys.argv[1]))
        finally:
            for each in workers:
                each.kill()


if __name__ == "__main__":
    main()
