"""`scrapy bloom top`: what it measures between looks, and what a view and a terminal show."""

import copy
import io
import json
import os
import re
import signal
import sys
import time
from contextlib import ExitStack, suppress
from unicodedata import category

import pytest
from rich.console import Console
from scrapy import Request
from support.crawling import at, crawl, target_of
from support.internals import stop_beating
from support.jobs import kept_job, list_failed, open_job
from support.queues import Crawler, let_die, shift_leases
from support.waiting import until
from testbed.localredis import LocalRedis
from testbed.localsite import LocalSite

from scrapy_bloom.commands import screen
from scrapy_bloom.commands.top import Rates
from scrapy_bloom.crawl.scrapy.downloads import Pace

ACCOUNT = {
    "done": 30,
    "unparsed": 3,
    "failed": 7,
    "not_kept": 0,
    "waiting": 1200,
    "in_flight": 20,
    "failures": {"503": 5, "ValueError in parse": 2},
    "decisions": {"404": 3},
    "seen": 3000,
}
WORKER = {"lease": 29.0, "silent": 0.0, "dead": 0.0, "in_flight": 10}
SLOT = {"waiting": 400, "wait": 0.0, "delay": 0.0, "until": 0.0}
FACTS = {
    "target": "Redis at localhost:6379/0, key books:books:bloom",
    "spider": "books",
    "project": "books",
    "items": 2500,
    "account": ACCOUNT,
    "hosts": 3,
    "later": 0,
    "paused": {},
    "workers": [
        WORKER | {"name": "c:3:x", "dead": 1.7e9, "lease": 0.0, "in_flight": 0},
        WORKER | {"name": "b:2:x", "lease": 11.0, "silent": 19.0},
        WORKER | {"name": "a:1:x"},
    ],
    "slots": [
        SLOT | {"name": "few.example", "waiting": 2, "wait": 3.04, "delay": 1.5},
        SLOT | {"name": "many.example"},
        SLOT | {"name": "away.example", "waiting": 99, "wait": 60.0, "until": 1.7e9},
    ],
}


def facts(**others):
    return copy.deepcopy(FACTS | others)


def lines(shown, width=100, **options):
    """Return the lines of a view without colours."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(screen.view(shown, width, **options))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_view_says_who_is_silent_or_dead_and_which_host_is_next_or_paused():
    looks = Rates()
    looks.add(facts(), at=10.0)
    shown = lines(looks.add(facts(account=ACCOUNT | {"done": 45, "waiting": 1190}), at=12.0))
    assert shown[0] == "Redis at localhost:6379/0, key books:books:bloom"
    assert {"pages/s     7.5", "waiting     1,190 (-300/min)", "done        45"} <= {*shown}
    assert shown[9] == "failed      7 (5 \u00d7 503, 2 \u00d7 ValueError in parse)"
    words = [line.split() for line in shown[11:15] + shown[16:20]]
    assert words[:2] == [
        ["worker", "lease", "in", "flight", "pages/s"],
        ["b:2", "11", "s", "10", "0.0", "SILENT", "for", "19", "s"],
    ]
    assert words[2][:4] == ["c:3", "0", "DEAD", "since"]
    assert words[3] == ["a:1", "29", "s", "10", "0.0"]
    assert words[5] == ["many.example", "400", "now", "none"]
    assert words[6][:7] == ["away.example", "99", "in", "60.0", "s", "none", "paused"]
    assert words[7] == ["few.example", "2", "in", "3.0", "s", "1.5", "s"]


@pytest.mark.parametrize(("width", "height"), [(60, 5), (79, 20), (160, 24)])
def test_a_view_fits_its_terminal_and_shows_workers_in_trouble_first(width, height):
    """With six workers, those that were dead or silent were "and 3 others"."""
    rows = [WORKER | {"name": f"w{n:02}:1:x"} for n in range(50)]
    rows[-2] |= {"silent": 15.0}
    rows[-1] |= {"dead": 1.7e9}
    slots = [SLOT | {"name": f"host{n}.example"} for n in range(50)]
    long = "/a/long/path" * 9
    shown = lines(facts(target=long, workers=rows, slots=slots, hosts=700), width, height=height)
    assert max(map(len, shown)) <= width
    assert len(shown) <= max(height, 18)
    names = [line[:3] for line in shown if re.match(r"w\d\d", line)]
    assert names == [f"w{n:02}" for n in (48, 49, *range(48))][: len(names)]
    assert names


def test_names_are_shown_as_plain_text():
    """Whoever can write to Redis, and each site that is linked to, chooses some of them."""

    def shown(name):
        file = io.StringIO()
        account = ACCOUNT | {"failures": {name: 7}, "decisions": {name: 3}}
        workers = [WORKER | {"name": f"{name}:1:x"}, WORKER | {"name": name, "dead": 1.7e9}]
        named = {"target": name, "spider": name, "project": name, "writer": f"a {name}"}
        more = {"account": account, "workers": workers, "slots": [SLOT | {"name": name}]}
        console = Console(file=file, width=160, force_terminal=True, color_system="standard")
        console.print(screen.view(facts(last_run=name, written=0, **named, **more), 160, 50, name))
        return file.getvalue()

    evil = "[red]x[/] \x1b[31m\x1b]0;t\x07\r\n\u202e\u200b\x9b1m"
    text, harmless = shown(evil), shown("x" * len(evil))
    colors = re.compile(r"\x1b\[[\d;]*m")
    assert colors.findall(text) == colors.findall(harmless)
    text = colors.sub("", text)
    assert {char for char in text if category(char)[0] == "C"} == {"\n"}
    assert text.count("[red]x[/]") >= 8
    assert text.count("\n") == harmless.count("\n")


def test_rates_come_from_the_last_looks():
    looks = Rates()
    assert "pages_per_second" not in looks.add(facts(), at=0.0)
    for second in range(1, 60):
        done = 30 + 2 * min(second, 50)
        shown = looks.add(facts(account=ACCOUNT | {"done": done}), at=float(second))
    assert shown["pages_per_second"] == 0
    assert shown["history"][-10:] == [2.0] + [0.0] * 9
    assert len(shown["history"]) < 59
    another = facts(account=ACCOUNT | {"done": 1})
    assert "history" not in looks.add(another, at=60.0)  # another crawl


def test_a_worker_has_its_share_of_what_has_ended():
    """Not those of a dead worker: they went back into the queue."""
    looks = Rates()
    before = {"a:1:x": {b"1", b"2", b"3"}, "b:2:x": {b"4"}, "c:3:x": {b"5", b"6"}}
    looks.add(facts(taken=before), at=0.0)
    after = {"a:1:x": {b"7"}, "d:4:x": {b"8"}}
    shown = looks.add(facts(taken=after, account=ACCOUNT | {"done": 38}), at=2.0)
    rates = {row["name"]: row["pages_per_second"] for row in shown["workers"]}
    assert rates == {"a:1:x": 3.0, "b:2:x": 1.0, "c:3:x": 0.0}
    assert "taken" not in shown


def told(bloom, target, verb="top --once --interval 0.1"):
    code, printed, errors = bloom(f"{verb} {target} --json")
    assert (code, errors) == (0, [])
    return json.loads("\n".join(printed))


def test_a_job_is_watched_beside_its_crawl(bloom, job):
    pauses, waits = [("busy.test", 300)], [("http://a.test/later", 600)]
    kept_job(job, urls=["http://a.test/"], pauses=pauses, waits=waits)
    crawl = open_job(job, requests=True)
    for number in range(20):
        assert crawl.store.filter.add(b"%020d" % number) is False
    for kind in ("503", "503", "ValueError in parse"):
        list_failed(crawl.store, Request("http://a.test/"), kind, date=1.7e9)
    crawl.store.commit()
    shown = told(bloom, job)
    whole = told(bloom, job, "info")
    assert shown["last_run"] == f"running as process {os.getpid()}"
    assert (shown["account"]["waiting"], shown["later"]) == (2, 1)
    for name in ("items", "account", "later", "spider", "written"):
        assert shown[name] == whole[name], name
    code, printed, errors = bloom(f"top {job} --interval 0.1")  # is no terminal
    assert (code, errors) == (0, [])
    assert "failed      3 (2 \u00d7 503, 1 \u00d7 ValueError in parse)" in printed
    assert re.match(r"paused +busy\.test until ", printed[-1])
    assert "\x1b" not in "".join(printed)
    crawl.close()
    assert told(bloom, job)["last_run"] == "stopped"


def test_a_crawl_in_redis_is_watched_and_not_changed(bloom, server, key):
    """A look tells who is silent, and who is dead."""
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Crawler(server.url, key, default=Pace(2.0, 0.0))) for _ in range(3)
        ]
        well, silent, dead = (worker.queue for worker in workers)
        for numbers, slot in ((range(3), "a"), (range(3, 8), "b"), ([8], "c"), ([9], "d")):
            workers[0].add(*numbers, slot=f"{slot}.test")
        well.next_call.pauses[b"b.test"] = time.monotonic() + 300
        well.next_call.paces[b"b.test"] = Pace(5.0, 0.0)
        assert all(worker.take(1) for worker in workers)
        stop_beating(silent.link)
        let_die(server, key, dead)
        shift_leases(server, key, -19, silent.worker.name)
        well.worker.beat()
        shown = told(bloom, f"{server.url}#{key}")
        whole = told(bloom, f"{server.url}#{key}", "info")
    for fact in ("items", "account", "later", "hosts", "spider"):
        assert shown[fact] == whole[fact], fact
    rows = {row["name"]: row for row in shown["workers"]}
    well, silent, dead = (rows[queue.worker.name] for queue in (well, silent, dead))
    assert [row["in_flight"] for row in (well, silent, dead)] == [1, 1, 0]
    assert 0 < well["lease"] <= 30
    assert silent["silent"] > well["silent"] + 18
    assert dead["dead"] > 1e9 > well["dead"] == silent["dead"] == 0
    slots = {slot["name"]: slot for slot in shown["slots"]}
    assert [slots[f"{name}.test"]["waiting"] for name in "ab"] == [2, 5]
    assert [slots[f"{name}.test"]["delay"] for name in "ab"] == [2, 5]
    assert slots["b.test"]["until"] > 1e9 > slots["a.test"]["until"] == 0


@at("kept job", "shared")
async def test_it_says_how_many_links_were_duplicates_in_all_runs(bloom, place):
    with LocalSite(pages=30, links=6) as site:
        runs = [await crawl(settings=place, url=site.url, filtered=False) for _ in range(2)]
    seen = [run.stats.get_value("bloom/seen") for run in runs]
    account = told(bloom, target_of(place))["account"]
    assert account["seen"] == sum(seen) > seen[0] > 100
    links = sum(seen) + account["done"] + account["unparsed"]
    shown = bloom(f"top {target_of(place)} --interval 0.1")[1]
    assert f"duplicates  {sum(seen) / links:.0%} of {links} links" in shown
    assert shown[2].startswith("status      finished; last written ")


def test_a_killed_run_has_counted_its_duplicates(bloom, project):
    def seen():
        code, lines, _ = bloom(f"info {project.job} --json")
        return code == 0 and json.loads("\n".join(lines)).get("account", {}).get("seen")

    with LocalSite(pages=120, links=6) as site:
        run = project.crawl(site, SCHEDULER="scrapy_bloom.Scheduler", DOWNLOAD_DELAY=0.2)
        until(lambda: run.ended or seen())
        run.kill()
        assert run.end() == -9
    assert seen()


def test_ctrl_c_ends_it_wherever_it_comes():
    """Python loses it in destructors and callbacks."""

    def looks():
        for number in range(3):
            if number == 1:
                with suppress(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGINT)
            yield Rates().add(facts(), at=10.0), ""
        raise AssertionError("it has not ended")

    handler = signal.getsignal(signal.SIGINT)
    screen.draw(looks())
    assert signal.getsignal(signal.SIGINT) is handler


def test_it_keeps_looking_while_the_server_is_away(bloom, monkeypatch):
    def draw(looks):
        assert next(looks)[1] == ""
        own.kill()
        facts, problem = next(looks)
        assert (facts["items"], "Connection refused" in problem) == (2, True)  # of the last look
        own.start()
        until(lambda: next(looks)[1] == "")
        drawn.append(True)

    drawn = []
    monkeypatch.setattr(screen, "draw", draw)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with LocalRedis(persist=True) as own:
        with Crawler(own.url, "crawl") as worker:
            worker.add(1, 2)
        assert bloom(f"top {own.url}#crawl --interval 0.1")[0] == 0
    assert drawn
