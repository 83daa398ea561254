"""What each backend of the port does, whatever it keeps a crawl in."""

import time
from math import inf

import pytest
from pytest_twisted import async_yield_fixture
from support.backends import HOUR, BySlot, InRedis, JobDirectory, Moved, Pages
from support.queues import mark_of

from scrapy_bloom import stats
from scrapy_bloom.crawl.outcomes import MOST_RUNS, REDIRECTED, Ended
from scrapy_bloom.crawl.serialize import Unstorable
from scrapy_bloom.errors import StateError

IN_REDIS = pytest.param(InRedis, marks=[pytest.mark.redis, pytest.mark.server])


@async_yield_fixture(params=[JobDirectory, BySlot, IN_REDIS])
async def crawl(request):
    crawl = request.param(request)
    yield crawl
    await crawl.close()


@async_yield_fixture
async def run(crawl):
    """The first run of a crawl."""
    yield await crawl.open()


async def again(crawl, how, **options):
    """End the run, if there is one, all of which was said, and open the next one; return that."""
    if how == "stop" and crawl.run:
        await crawl.run.stop()
    elif how == "kill" and crawl.run:
        await crawl.run.say()
        await crawl.kill()
    return crawl.run or await crawl.open(**options)


BOUNDED = "local.failed", "redis.wire", "redis.reporting"
restarts = pytest.mark.parametrize("how", ["stop", "kill"])


# Marks and requests


async def test_a_mark_and_its_request_are_added_once(run):
    assert mark_of("a") not in run.backend
    assert await run.offer("a", "b") == [False, False]
    assert mark_of("a") in run.backend
    assert await run.offer("b", "a") == [True, True]
    assert await run.offer("p", filtered=False) == [False]
    assert await run.offer("p", filtered=False) == [False]
    assert run.backend.info().items == 2
    assert await run.take() == ["a", "b", "p", "p"]
    await run.stop()


@restarts
async def test_requests_come_by_priority_and_then_in_their_order(crawl, run, how):
    pages = {"a": 0, "b": 0, "c": -5, "d": 7, "e": 7, "f": 0}
    requests = [run.request(name, priority=priority) for name, priority in pages.items()]
    await run.answers([run.backend.offer(request, 0.0, None, None) for request in requests])
    assert await run.take(1) == ["d"]
    run = await again(crawl, how)
    assert await run.take() == [*"deabfc"]


@restarts
async def test_a_request_stays_until_it_is_done_and_its_mark_for_ever(crawl, run, how):
    await run.offer(*"abcde")
    assert len(run.backend) == 5
    assert await run.take(3) == [*"abc"]
    assert len(run.backend) == 2
    run.end("b")
    run = await again(crawl, how)
    assert await run.offer(*"abcde") == [True] * 5
    assert sorted(await run.take()) == [*"acde"]
    run.end(*"acde")
    run = await again(crawl, how)
    assert await run.offer(*"abcde") == [True] * 5
    assert await run.take() == []
    assert run.backend.over


async def test_what_was_not_said_before_a_kill_has_not_happened(crawl, run):
    await run.offer(*"abc")
    await run.take()
    await run.say()
    run.end("a")
    run.fail("b")
    for name in "de":
        run.backend.offer(run.have["c"][0], 0.0, mark_of(name), None)
    await crawl.kill()
    run = await crawl.open()
    assert sorted(await run.take()) == [*"abc"]
    assert await run.offer(*"abcde") == [True] * 3 + [False] * 2
    account = await run.stop()
    assert (account.done, account.failed, account.pages) == (0, 0, 5)


async def test_a_request_that_cannot_be_stored_is_marked_until_a_kill(crawl, run):
    with pytest.raises(Unstorable):
        await run.offer("a", callback=lambda _: None)
    run.backend.withhold([mark_of("a")])
    assert await run.offer("a", "b") == [True, False]
    run = await again(crawl, "kill")
    assert await run.offer("a", "b") == [False, True]


@pytest.mark.parametrize("crawl", [IN_REDIS], indirect=True)
async def test_after_a_loss_what_was_only_in_memory_is_new(crawl, run):
    run.backend.withhold([mark_of("a")])
    assert await run.offer("a", "b") == [True, False]
    crawl.client.delete(*crawl.client.keys(f"{crawl.key}*"))
    assert await run.offer("c", "a") == [False, True]
    assert await run.offer("a") == [False]


async def test_forgotten_marks_can_be_added_again(crawl, run):
    await run.offer(*"abc")
    with pytest.raises(Unstorable):
        await run.offer("m", callback=lambda _: None)
    run.backend.withhold([mark_of("m")])
    assert await run.forget(*"amx") == [True, True, False]
    assert await run.offer(*"abmx") == [False, True, False, False]
    await run.forget(*"bx")
    run = await again(crawl, "kill")
    assert await run.offer(*"abx") == [True, False, False]


@restarts
async def test_a_mark_counts_for_an_age(crawl, run, how):
    assert await run.offer("a", max_age=HOUR) == [False]
    assert await run.offer("a", max_age=HOUR) == [True]
    run = await again(crawl, how)
    assert await run.offer("a", max_age=HOUR) == [True]
    assert await run.offer("a", max_age=0) == [False]
    crawl.wait(2 * HOUR)
    assert await run.offer("a", max_age=HOUR) == [False]
    assert await run.offer("a", max_age=HOUR) == [True]
    assert await run.offer("a") == [True]


async def test_what_cannot_be_read_keeps_nothing_back_and_is_not_done(crawl):
    run = await crawl.open(Moved)
    await run.offer("a", callback=run.crawl.spider.parse_page)
    await run.offer("b")
    await run.stop()
    run = await crawl.open(Pages)
    assert await run.take() == ["b"]
    run.end("b")
    assert run.crawler.stats.get_value(stats.UNREADABLE.key) == 1
    account = await run.stop()
    assert (account.done, account.pages) == (1, 2)
    run = await crawl.open(Moved)
    assert await run.take() == ["a"]


# What must not be sent yet


@pytest.mark.parametrize("how", ["", "stop", "kill"])
async def test_a_request_waits_until_its_time(crawl, run, how):
    await run.offer("a", wait=HOUR)
    await run.offer("p", wait=2 * HOUR, filtered=False)
    await run.offer("b")
    assert await run.take() == ["b"]
    run.end("b")
    run = await again(crawl, how)
    assert await run.offer(*"ab") == [True, True]
    assert await run.take() == []
    assert (len(run.backend), run.backend.later) == (2, 2)
    count, until = run.backend.idle_until()
    assert count == 2
    assert until == pytest.approx(time.monotonic() + HOUR, abs=HOUR / 2)
    assert not run.backend.pending()
    assert not run.backend.over
    assert min(run.backend.next_start, run.backend.exchange_at) < inf
    crawl.wait(HOUR / 2)
    assert await run.take() == []
    crawl.wait(HOUR)
    assert await run.take() == ["a"]
    crawl.wait(HOUR)
    assert await run.take() == ["p"]
    assert (len(run.backend), run.backend.later) == (0, 0)


async def test_many_whose_time_has_come_are_all_taken(crawl, run):
    names = [*map(str, range(250))]
    await run.offer(*names, wait=HOUR)
    crawl.wait(2 * HOUR)
    assert sorted(await run.take(), key=int) == names


@pytest.mark.parametrize("how", ["", "stop", "kill"])
async def test_a_slot_is_left_alone_and_others_are_not(crawl, run, how):
    for seconds in (HOUR, HOUR / 4, 0):  # what is shorter changes nothing
        run.backend.pause_host(run.request("a"), seconds)
    assert run.backend.paused_until(run.request("a")) == pytest.approx(
        time.monotonic() + HOUR, abs=HOUR / 4
    )
    await run.offer("a", "w")
    run = await again(crawl, how)
    await run.offer("x")
    await run.offer("b", host="b")
    run.backend.pause_host(run.request("b", host="b"), 0)
    assert await run.take() == ["b"]
    assert run.backend.paused_until(run.request("a")) > time.monotonic()
    assert not run.backend.paused_until(run.request("b", host="b"))
    assert (len(run.backend), run.backend.pending(), run.backend.over) == (3, False, False)
    assert run.backend.idle_until()[1] == pytest.approx(time.monotonic() + HOUR, abs=HOUR / 4)
    crawl.wait(2 * HOUR)
    assert sorted(await run.take()) == [*"awx"]
    assert not run.backend.paused_until(run.request("a"))


# How pages end


async def test_pages_are_counted_by_how_they_end_and_why_they_fail(crawl, run):
    await run.offer(*"abcdefgh")
    await run.take()
    run.end("a")
    run.fail("b", kind="404", unparsed=True)
    run.fail("c", kind=REDIRECTED, unparsed=True)
    run.end("d", how=Ended.REPLACED)
    run.backend.release(None, Ended.DONE)  # it was in memory
    run.fail("e", kind="503")
    run.fail("f", kind="ValueError in parse")
    await run.say()
    account = run.backend.account()
    assert (account.done, account.unparsed, account.failed, account.pages) == (2, 2, 2, 8)
    account = await run.stop()
    assert account[:3] == (2, 2, 0)
    assert account.decisions == {"404": 1, REDIRECTED: 1}
    assert account.failures == {"503": 1, "ValueError in parse": 1}
    await crawl.open()
    run = await again(crawl, "kill")
    account = await run.stop()
    assert (account.done, account.unparsed, account.pages) == (2, 2, 8)
    assert account.decisions == {"404": 1, REDIRECTED: 1}


async def test_of_very_many_unparsed_pages_further_ones_are_only_counted(run, monkeypatch, caplog):
    for module in BOUNDED:
        monkeypatch.setattr(f"scrapy_bloom.{module}.MOST_UNPARSED", 2)
    await run.offer(*"abcde")
    await run.take()
    for page in "abcd":
        run.fail(page, kind="403", unparsed=True)
    run.fail("e")  # what has failed is kept, however many these are
    account = await run.stop()
    assert (account.decisions, account.not_kept, account.failed) == ({"403": 2}, 2, 1)
    assert account.pages == 5
    assert caplog.text.count("2 pages are unparsed: further ones are only counted") == 1


async def test_a_start_request_that_is_only_counted_was_not_done(crawl, monkeypatch):
    for module in BOUNDED:
        monkeypatch.setattr(f"scrapy_bloom.{module}.MOST_UNPARSED", 0)
    for _ in range(3):
        run = await crawl.open(starts=True)
        await run.offer("s", filtered=False)
        await run.take()
        run.fail("s", kind="404", unparsed=True)
        account = await run.stop()
        assert account.done == 0
        assert account.not_kept == 1 or run.backend.shared  # there it counts in each run


@restarts
async def test_what_has_failed_is_fetched_by_the_next_run(crawl, run, how):
    await run.offer(*"abc")
    await run.take()
    run.fail(*"ab")
    run.end("c")
    assert await run.take() == []
    assert run.backend.over
    run = await again(crawl, how)
    assert not run.backend.over
    assert await run.offer(*"abc") == [True] * 3
    assert sorted(await run.take()) == [*"ab"]
    assert (run.backend.account().done, run.backend.account().failed) == (1, 0)
    run.fail("a")
    run.end("b")
    await run.say()
    assert (run.backend.account().done, run.backend.account().failed) == (2, 1)


async def test_what_has_failed_waits_for_start_to_be_through_and_for_its_host(crawl, run):
    for host in "aaab":
        await run.offer(f"{host}{len(run.have)}", host=host)
        await run.take()
    run.fail(*run.have)
    run = await again(crawl, "stop", starts=True)
    assert await run.take() == []
    run.engine.has_started = True
    run.backend.pause_host(run.request("a"), HOUR)
    assert await run.take() == ["b3"]
    assert not run.backend.over
    crawl.wait(2 * HOUR)
    assert len(await run.take()) == 3


async def test_while_something_is_in_flight_what_has_failed_comes_back_in_an_hour(crawl, run):
    await run.offer("a")
    await run.take()
    run.fail("a")
    run = await again(crawl, "stop")
    run.engine.busy = True
    assert await run.take() == []
    crawl.wait(2 * HOUR)
    assert await run.take() == ["a"]


async def test_where_redirects_led_is_forgotten_with_a_page_that_fails(run):
    await run.offer("page", "way")
    await run.take()
    run.end("way")
    run.fail("page", way=["way"])
    await run.say()
    assert await run.offer("page", "way") == [True, False]


async def redirect(run, *names):
    """Have pages redirected: the first to where it fails then, the others there when that is seen.

    :returns: those that came.
    """
    if here := await run.take():
        first, *others = [name for name in names if name in here] or [None]
        assert await run.offer("wall") == [False]
        await run.take()
        run.end("wall", how=Ended.REPLACED)
        run.fail(*others, kind=REDIRECTED, unparsed=True, to="wall")
        run.fail(first, way=["wall"])
    return sorted(here)


@restarts
async def test_what_was_redirected_to_a_page_that_fails_then_fails_in_three_runs(crawl, how):
    names, came = ["a", "b", "c"], []
    for _ in range(MOST_RUNS + 2):
        crawl.wait(2 * HOUR)
        run = await again(crawl, how)
        await run.offer(*names)
        came.append(await redirect(run, *names))
    assert came == [names] * MOST_RUNS + [[]] * 2


async def test_what_was_redirected_to_a_page_stays_unparsed_if_that_is_marked_anew(crawl):
    """Also if the filter has grown meanwhile: then it is in the list of forgotten pages still."""
    crawl.settings = {**crawl.settings, "BLOOM_CAPACITY": 20}
    run = await crawl.open()
    await run.offer("a", "b")
    await redirect(run, "a", "b")
    for name in map(str, range(100)):
        await run.offer(name)
    assert await run.offer("wall") == [False]
    await run.take()
    run.end(*run.have)
    for came in ["a"], []:
        run = await again(crawl, "stop")
        assert await run.take() == came
        run.end(*came)
    account = await run.stop()
    assert (account.unparsed, account.failed) == (1, 0)


async def test_what_was_redirected_to_a_page_does_not_come_again_if_that_is_forgotten(crawl):
    """Nothing has failed: a daily `forget()` of a front page would bring all of them back."""
    names = [*map(str, range(20))]
    run = await crawl.open()
    await run.offer("front", *names)
    await run.take()
    run.end("front")
    run.fail(*names, kind=REDIRECTED, unparsed=True, to="front")
    for _ in range(3):
        run = await again(crawl, "stop")
        assert await run.forget("front") == [True]
        assert await run.offer("front") == [False]
        assert await run.take() == ["front"]
        run.end("front")
    assert (await run.stop()).unparsed == len(names)


async def test_a_page_that_fails_for_good_is_fetched_in_three_runs_and_nothing_grows(crawl):
    """Those within an hour count once. They fail while others are still to come."""
    names, sizes = [*map(str, range(300))], []
    for minutes in (0, 10, 10, 90, 90, 90, 90):
        crawl.wait(60 * minutes)
        run = await crawl.open()
        await run.offer(*names)
        fetched = 0
        while some := await run.take(100):
            fetched += len(some)
            run.fail(*some[::2], unparsed=bool(sizes))  # once it has failed, that counts, too
            run.fail(*some[1::2])
            await run.say()
        assert fetched == (len(names) if len(sizes) < 2 + MOST_RUNS else 0)
        assert run.backend.over
        account = await run.stop()
        assert account.failed + account.unparsed == account.pages == len(names)
        sizes.append(crawl.size)
    assert max(sizes[1:]) < 1.1 * sizes[0]


# Start requests that are not filtered: each run sends them


async def test_a_start_request_is_one_page_that_counts_as_it_ended_last(crawl):
    for unparsed in True, False, True:
        run = await crawl.open(starts=True)
        await run.offer(*"st", filtered=False)
        assert run.backend.account().pages == 2
        await run.take()
        if unparsed:
            run.fail("s", kind="404", unparsed=True)
        else:
            run.end("s")
        run.end("t")
        account = await run.stop()
        assert account[:3] == (1 if unparsed else 2, 0, 0)
        assert account.decisions == ({"404": 1} if unparsed else {})
    run = await crawl.open(starts=True)
    await run.offer("s", filtered=False, meta={"page": {1, 2}})
    assert run.backend.account().pages == 2
    await run.offer("s", filtered=False, callback=run.crawl.spider.parse)
    assert run.backend.account().pages == 3


async def test_a_start_request_that_has_failed_is_no_second_page_when_it_comes_again(crawl):
    """It takes the place of the failed one, with the failures behind it."""
    fetched = []
    for _ in range(MOST_RUNS + 2):
        run = await crawl.open(starts=True)
        await run.offer("s", filtered=False)
        run.engine.has_started = True
        fetched += await run.take()
        run.fail("s")
        await run.say()
        account = await run.stop()
        assert account.failed + account.unparsed == account.pages == 1
        crawl.wait(2 * HOUR)
    run = await crawl.open()  # without it
    assert fetched == ["s"] * (MOST_RUNS + 2)
    assert await run.take() == []


async def test_start_requests_for_one_page_with_one_callback_are_several_pages(crawl):
    """Sessions, say, told apart by `cookiejar`: one left the failed list when another was done."""
    names = ["s#0", "s#1", "s#2"]
    for bad in ["s#1"], ["s#0", "s#1"], []:
        run = await crawl.open(starts=True)
        await run.offer(*names, filtered=False)
        assert run.backend.account().pages == 3
        run.engine.has_started = True
        assert sorted(await run.take()) == names
        run.fail(*bad)
        run.end(*run.have)
        account = await run.stop()
        assert (account.done, account.failed) == (3 - len(bad), len(bad))


async def test_a_session_is_known_by_its_cookiejar_whichever_others_come(crawl):
    for names, bad in ("012", "02"), ("2", ""), ("10", ""):
        run = await crawl.open(starts=True)
        for name in names:
            await run.offer(f"s#{name}", filtered=False, meta={"cookiejar": int(name)})
        assert run.backend.account().pages == 3
        await run.take()
        run.fail(*(f"s#{name}" for name in bad))
        run.end(*run.have)
        await run.stop()
    assert (run.report.account.done, run.report.account.failed) == (3, 0)


async def test_a_start_request_that_cannot_be_stored_is_one_page(crawl):
    for is_done in True, True, False, False, True:
        run = await crawl.open(starts=True)
        with pytest.raises(Unstorable) as unstorable:
            await run.offer("s", filtered=False, meta={"own": lambda: 0})
        run.have["s"] = unstorable.value._request, None  # noqa: SLF001 - of it
        if is_done:
            run.end("s")
        else:
            run.fail("s", kind="404", unparsed=True)
        account = await run.stop()
        assert account.done == is_done or run.backend.shared
        assert account.not_kept == (not is_done) or run.backend.shared


@restarts
async def test_start_requests_that_still_wait_are_known_to_the_next_run(crawl, how):
    """Each run stored them once more. One that was done is a new one, also if others wait."""
    names = [f"s#{number}" for number in range(300)]
    for still in 0, 295, 295:
        run = await again(crawl, how, starts=True)
        account = run.backend.account()
        assert account.pages - account.done == still
        await run.offer(*names, filtered=False)
        await run.say()
        assert run.backend.account().pages == 300
        run.end(*await run.take(5))
        await run.say()
        account = run.backend.account()
        assert (account.done, account.pages) == (5, 300)


# Exchanges


async def test_each_change_is_due_to_be_said(run):
    backend, request = run.backend, run.request("a")
    await run.offer("a")
    await run.say()
    assert backend.offer(request, 0.0, mark_of("a"), None) is True
    assert not backend.dirty
    for change in (
        lambda: backend.offer(request, 0.0, None, None),
        lambda: backend.forget_many([mark_of("a")]),
        lambda: backend.pause_host(run.request("b", host="b"), HOUR),
    ):
        change()
        due = backend.exchange_at
        assert backend.dirty
        assert due < inf
        backend.offer(run.request("c"), 0.0, None, None)
        assert backend.exchange_at <= due
        await run.say()
    await run.take(1)
    for change in (lambda: run.end("a"), lambda: backend.release(None, Ended.DONE)):
        change()
        assert backend.dirty
        await run.say()


async def test_after_it_has_given_up_nothing_more_is_said(crawl, run):
    await run.offer(*"ab")
    await run.take(1)
    await run.say()
    run.backend.give_up(StateError("a fault"))
    assert run.backend.broken
    run.end("a")
    assert not await run.backend.close()
    crawl.run = None
    assert sorted(await (await crawl.open()).take()) == [*"ab"]
