"""What earlier versions have stored, this one reads: the files in `tests/data`."""

import re
from collections import Counter
from pathlib import Path
from shutil import unpack_archive

import pytest
from packaging.version import Version
from support.crawling import make_crawler
from support.kills import items_in
from support.stored import DATA, ENDS, FRONT, KINDS, MARKS, NUMBERED, Stored, info_of, replay
from twisted.internet.defer import gatherResults

from scrapy_bloom import LocalFilter, RedisFilter, file
from scrapy_bloom.redis import header

VERSIONS = sorted(DATA.iterdir(), key=lambda folder: Version(folder.name))
WAY = (
    "Whoever changes a format writes the step that reads what earlier versions have stored, and"
    " adds files of the new one: see 'Formats' in CONTRIBUTING.md."
)

NUMBERS = {f"/{number}" for number in range(1, NUMBERED + 1)}
FAILED = {"/hop", "/failing", "/raising"}
UNPARSED = {"/gone", "/moved"}
PAGES = {"/", *NUMBERS, *FRONT, *FAILED}

pytestmark = pytest.mark.usefixtures("short_leases")
each = pytest.mark.parametrize("stored", VERSIONS, ids=lambda folder: folder.name, indirect=True)
each_end = pytest.mark.parametrize("ends", ENDS)


@pytest.fixture
def stored(request, tmp_path, monkeypatch):
    """Return what unpacks files of a version into the current folder."""
    monkeypatch.chdir(tmp_path)
    return lambda name: unpack_archive(request.param / f"{name}.zip")


def fetched():
    """Return how often which page was fetched, in all runs."""
    return Counter(Path("fetched").read_text().split())


async def finish(kind, workers=1, **settings):
    runs = [make_crawler(Stored, KINDS[kind] | settings) for _ in range(workers)]
    await gatherResults([run.crawl() for run in runs])
    assert [run.stats.get_value("finish_reason") for run in runs] == ["finished"] * workers, WAY
    assert fetched().keys() == PAGES, WAY


async def resume(kind, ends, target, **options):
    """Finish a crawl by our scheduler, and check what has become of each page."""
    open_before = len(fetched()) - info_of(target)["account"]["done"] if ends == "kill" else 0
    await finish(kind, **options)
    times = fetched()
    assert min(times[path] for path in {*FAILED, "/again"}) == 2
    assert max(times[path] for path in UNPARSED) == 1
    twice = {path for path in PAGES - FAILED - {"/", "/again"} if times[path] > 1}
    assert len(twice) <= open_before
    account = info_of(target)["account"]
    assert sum(account["decisions"].values()) == len(UNPARSED)
    assert (account["waiting"], account["in_flight"], account["failed"]) == (0, 0, 0)
    # /again counts twice, and /failing as the page that redirects to it.
    assert account["done"] == len(PAGES - UNPARSED)


@each
@each_end
async def test_a_job_is_resumed(stored, ends):
    stored(f"job-{ends}")
    await resume("job", ends, "job")
    items = items_in(Path("items.jsonl"))
    assert {path: items[path] for path in NUMBERS} == dict.fromkeys(NUMBERS, 1)


@each
@each_end
async def test_a_job_of_a_filter_alone_is_resumed_or_starts_over(stored, ends):
    stored(f"plain-{ends}")
    before = fetched()
    await finish("plain")
    again = {path for path, times in before.items() if fetched()[path] > times}
    assert again == ({"/", "/again"} if ends == "stop" else before.keys())


@pytest.mark.long
@each
@each_end
async def test_a_crawl_in_redis_is_finished_by_workers(stored, ends, server):
    stored(f"redis-{ends}")
    replay(server)
    target = f"{server.url}#stored"
    await resume("redis", ends, target, workers=2, BLOOM_REDIS_URL=server.url)
    assert items_in(Path("items.jsonl")).keys() >= NUMBERS


@each
def test_filters_without_a_crawl_are_read(stored, server):
    stored("filters")
    replay(server)
    with RedisFilter.from_url(server.url, key="stored", capacity=200, timeout=10) as shared:
        for filter_ in LocalFilter.load("filter.sqlite"), shared:
            assert filter_.contains_many(MARKS) == [True] * (len(MARKS) - 1) + [False]


def test_the_newest_files_are_in_the_formats_of_this_version(tmp_path):
    unpack_archive(VERSIONS[-1] / "filters.zip", tmp_path)
    local = int.from_bytes((tmp_path / "filter.sqlite").read_bytes()[60:64], "big")
    shared = re.search(r"b'format', b'(\d+)'", (tmp_path / "commands").read_text())[1]
    assert (local, shared.encode()) == (file.FORMAT, header.FORMAT), WAY
