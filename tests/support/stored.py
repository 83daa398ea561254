"""What each version stores, for the tests of later ones: `make stored` writes it to `tests/data`.

The names of the spider, its callback and its pages are in these files, and stay as they are.
"""

import asyncio
import os
import signal
import sys
from ast import literal_eval
from functools import partial
from itertools import chain
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit
from zipfile import ZIP_DEFLATED, ZipFile

from scrapy import Request, Spider
from scrapy.http import HtmlResponse
from scrapy.settings import Settings
from testbed.localredis import LocalRedis

import scrapy_bloom
from scrapy_bloom.commands.project import Project as Commands
from scrapy_bloom.commands.target import target_of
from support.crawling import KEPT, SCRAPYS, Project, close
from support.internals import after_each_commit
from support.waiting import until

DATA = Path(__file__).parents[1] / "data"
KINDS = {
    "job": {**KEPT, "JOBDIR": "job"},
    "plain": {"SCHEDULER": SCRAPYS, "JOBDIR": "job"},
    "redis": {**KEPT, "BLOOM_REDIS_KEY": "stored"},
}
ENDS = "stop", "kill"
MARKS = [bytes([number]) * 20 for number in range(150)]
"""In the filters without a crawl, which have forgotten the last one."""

NUMBERED = 100
ANSWERED = 50
"""So many requests of a run are answered before it is killed; the others are in flight then."""

LATER = "60s"
"""How long some wait: longer than a first run takes, and over when later versions are tested."""

FRONT = {
    "/1": {"priority": 2},
    **{f"/{name}": {"priority": 1} for name in ("again", "raising", "gone", "hop")},
    "/late": {"priority": 1, "meta": {"bloom_delay": LATER}},
    "/aged": {"priority": 1, "meta": {"bloom_max_age": "5000w"}},
    "/paused": {"priority": 1, "meta": {"download_slot": "paused.test"}},
    "/moved": {},
}
"""Links of the front page beside the numbers."""


class Stored(Spider):
    """Does whatever leaves something to be stored, of each kind.

    The setting `ENDS` says how its first run ends, ``stop`` or ``kill``; the second one has none.
    """

    name = "stored"
    custom_settings = {  # noqa: RUF012 - Scrapy's way
        "BLOOM_CAPACITY": NUMBERED,  # so that it grows
        "BLOOM_REDIS_TIMEOUT": 10,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 8,
        "DOWNLOADER_MIDDLEWARES": {"support.stored.Site": 900},
        "FEEDS": {"items.jsonl": {"format": "jsonlines"}},
        "RETRY_ENABLED": False,
        # Versions of Scrapy differ in what they take by default, and cannot read each other's.
        "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleLifoDiskQueue",
        "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue",
        "SCHEDULER_START_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
    }
    parsed = 0

    async def start(self):
        self.ends = self.settings.get("ENDS")
        if self.ends == "kill" and "JOBDIR" in self.settings:
            after_each_commit(self.die)  # which has what is not yet in the feed
        yield Request("http://stored.test/", dont_filter=True)

    def die(self, _):
        if self.parsed >= ANSWERED // 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def parse(self, response, parent=None):
        path, links = urlsplit(response.url).path, response.css("a::attr(href)").getall()
        assert parent is None or path in (*links_of(parent), "/failing"), "another page's"
        self.parsed += 1
        if self.ends and path == "/raising":
            raise ValueError("a page that the first run cannot bear")
        if self.ends and path == "/again":
            scrapy_bloom.forget(response.request, self.crawler)
        for href in links:
            found = response.follow(href, cb_kwargs={"parent": path}, **FRONT.get(href, {}))
            if self.ends and href == "/paused":
                scrapy_bloom.hold(found, self.crawler, LATER)
            yield found
        yield {"url": path}
        if self.ends == "stop" and self.parsed == ANSWERED // 2:
            close(self.crawler)


def links_of(path):
    if path == "/late":
        return ["/again", "/1"]
    number = int(path[1:] or 0) if path[1:].isdigit() or path == "/" else NUMBERED
    numbers = range(3 * number + 1, min(3 * number + 3, NUMBERED) + 1)
    return [*(FRONT if path == "/" else ()), *(f"/{n}" for n in numbers)]


class Site:
    """Answers in place of a server, and notes in a file what was asked for."""

    asked = 0

    @classmethod
    def from_crawler(cls, crawler):
        self = cls()
        self.ends = crawler.settings.get("ENDS")
        return self

    def note(self, path):
        self.asked += 1
        with Path("fetched").open("a") as file:
            file.write(f"{path}\n")

    async def process_request(self, request, spider=None):  # noqa: ARG002 - Scrapy's signature
        path = urlsplit(request.url).path
        self.note(path)
        if self.ends == "kill" and self.asked > ANSWERED:
            await asyncio.Event().wait()
        await asyncio.sleep(0.03)  # so that others come meanwhile, and commits
        statuses = {"/gone": 404, "/hop": 302, "/moved": 302}
        if self.ends:
            statuses["/failing"] = 503
        headers = {"Location": {"/hop": "/failing", "/moved": "/1"}.get(path, "")}
        body = "".join(f'<a href="{href}">a link</a>' for href in links_of(path))
        return HtmlResponse(request.url, statuses.get(path, 200), headers, body.encode())


def info_of(target):
    """Return what `info` says of a crawl."""
    return target_of(Commands(Settings()), str(target)).info()


def commands_of(client):
    """Return commands, a line each, with which any server gets all that one has."""
    dumps = {
        b"hash": lambda key: ["HSET", key, *chain(*client.hgetall(key).items())],
        b"set": lambda key: ["SADD", key, *client.smembers(key)],
        b"string": lambda key: ["SETRANGE", key, 0, client.get(key)],
        b"zset": lambda key: ["ZADD", key, *chain(*scores_in(key))],
    }

    def scores_in(key):
        return ((repr(s), member) for member, s in client.zrange(key, 0, -1, withscores=True))

    keys = sorted(client.keys())
    assert {client.ttl(key) for key in keys} <= {-1}  # for ever
    return "".join(f"{dumps[client.type(key)](key)!r}\n" for key in keys)


def replay(server):
    """Empty a server, and let it have what another one had: by the commands in this folder."""
    with server.client() as client:
        client.flushall()
        for line in Path("commands").read_text().splitlines():
            client.execute_command(*literal_eval(line))


def write_crawl(kind, ends, server, client, project):
    """Begin a crawl, and stop or kill it."""
    settings = {"SPIDER_MODULES": "support.stored", "ENDS": ends, **KINDS[kind]}
    if kind == "redis":
        settings["BLOOM_REDIS_URL"] = server.url
    options = (("-s", f"{name}={value}") for name, value in settings.items())
    run, fetched = project.start("crawl", "stored", *chain(*options)), project.folder / "fetched"

    def is_ready():
        asked = len(fetched.read_text().split()) if fetched.exists() else 0
        listed = client.hmget("stored", "failed", "unparsed") == [b"2", b"2"]
        return run.ended or (kind != "job" and asked > ANSWERED and (listed or kind == "plain"))

    if ends == "kill":
        until(is_ready)  # in a job it kills itself
        run.kill()
    assert run.end() == (-9 if ends == "kill" else 0), run.log
    if kind != "plain":
        info = info_of(project.job if kind == "job" else f"{server.url}#stored")
        account = info["account"]
        some = account["done"] > ANSWERED // 4, info["later"], info["paused"]
        assert (all(some), account["failed"], account["unparsed"]) == (True, 2, 2), info


def write_filters(server, _, project):
    """Fill a filter that is saved, and one in Redis, both beside no crawl."""
    local = scrapy_bloom.LocalFilter(capacity=200)
    with scrapy_bloom.RedisFilter.from_url(server.url, key="stored", capacity=200) as shared:
        for filter_ in (local, shared):
            filter_.add_many(MARKS)
            filter_.forget(MARKS[-1])
    local.save(project.folder / "filter.sqlite")


def pack(folder, path):
    """Pack what a crawl has left in a folder: most of a database is empty."""
    left = "job/**/*", "items.jsonl", "fetched", "commands", "filter.sqlite"
    with ZipFile(path, "w", ZIP_DEFLATED) as packed:
        for each in chain(*map(folder.glob, left)):
            if each.is_file() and each.suffix not in {".lock", ".sqlite-shm"}:
                packed.write(each, each.relative_to(folder))


def main():
    folder = DATA / scrapy_bloom.__version__
    if folder.exists():
        sys.exit(f"{folder}: what a release has stored stays. See 'Formats' in CONTRIBUTING.md.")
    crawls = {f"{k}-{ends}": partial(write_crawl, k, ends) for k in KINDS for ends in ENDS}
    with LocalRedis() as server, server.client() as client, TemporaryDirectory() as made:
        for name, write in {**crawls, "filters": write_filters}.items():
            client.flushall()
            with TemporaryDirectory() as temporary, Project(Path(temporary)) as project:
                write(server, client, project)
                (project.folder / "commands").write_text(commands_of(client))
                pack(project.folder, Path(made, f"{name}.zip"))
        copytree(made, folder)


if __name__ == "__main__":
    main()
