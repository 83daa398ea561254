"""The account in Redis: each page is done, failed, waiting or taken, at every call."""

import pytest
from support.internals import stop_beating
from support.proxy import Proxy
from support.queues import Crawler, exchange, mark_of, name_of, parts_of
from support.windows import START

from scrapy_bloom.crawl.outcomes import MOST_RUNS, REDIRECTED
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.wire import Call, Ending

MINUTE, HOUR = 60, 3600


def fail_all(crawl, names, **said):
    """Make a run in which these pages fail."""
    worker = crawl.join()
    worker.offer(*names)
    worker.take(len(names))
    worker.fail(*names, **said)
    worker.say()
    worker.queue.close()


# What is counted


def test_what_a_worker_has_not_said_when_it_ends_goes_back_at_once(crawl, worker):
    """It ends without a call if errors that nobody expects come again and again."""
    worker.offer(*"abcd")
    worker.take(4)
    worker.queue.end(worker.have["a"])
    worker.fail("b")
    worker.queue.requeue(worker.have["c"])
    assert parts_of(worker.queue.close())[3:] == (4, 0)
    assert sorted(crawl.join().take(4)) == [*"abcd"]
    assert crawl.account.in_flight == 4


def test_what_stands_for_a_page_takes_its_place_once_it_is_queued(crawl, worker):
    """A retry, or a redirect; one that is seen is not queued."""
    worker.offer(*"ab")
    worker.take(2)
    page = worker.have["a"]
    for op, mark, then in (("f", mark_of("b"), (0, 2)), ("p", None, (1, 1))):
        worker.queue.offer(Entry(op, mark, b"c", instead=page))
        worker.say()
        assert crawl.parts == (0, 0, 0, *then)
    worker.queue.end(page)
    assert not worker.queue.has_work


def test_a_hundred_reasons_are_told_apart_and_rows_leave_by_hand_once(crawl, worker):
    worker.offer(*range(120), *"abc")
    for name in worker.take(123):
        worker.fail(name, kind=f"kind {name}", tries=1 if name.isdigit() else MOST_RUNS)
    worker.say()
    reader = worker.queue.reader
    told = reader.account(reader.existing().counts)
    assert (len(told.failures), told.failures["others"], len(told.decisions)) == (101, 20, 3)
    rows = {row.request.body: row for row in reader.failed()}
    del rows[b"c"]
    back = {row.key: None if body == b"b" else row.request for body, row in rows.items()}
    for _ in range(2):
        worker.queue.worker.call(Call(restored=back))
        told = crawl.account
        assert (parts_of(told), told.decisions) == ((1, 1, 0, 121, 0), {"kind c": 1})
        assert crawl.client.hlen(crawl.base + "bodies") == 122
    assert len(worker.take(200)) == 121


@pytest.mark.parametrize("fault", ["drop reply", "late", "twice"])
def test_a_call_that_is_made_twice_lists_and_counts_once(server, key, crawl, fault):
    with Proxy(server.port, counted=name_of("call")) as proxy, Crawler(proxy.url, key) as worker:
        worker.offer(*"abcd")
        worker.take(4)
        worker.fail("a", "b")
        worker.queue.end(worker.have.pop("c"))
        worker.queue.next_call.seen = 7
        proxy.faults = {proxy.requests + 1: fault}
        worker.say()
        told = crawl.account
        assert (parts_of(told), told.failures, told.seen) == ((1, 0, 2, 0, 1), {"503": 2}, 7)


@pytest.mark.parametrize(
    ("lost", "left"),
    [
        ("*", (0, 0, 0, 0, 0)),
        ("*:queue", (0, 1, 1, 0, 1)),
        ("*:failed", (0, 1, 0, 1, 1)),
        ("*:unparsed", (0, 0, 1, 1, 1)),
        ("*.again", (0, 1, 1, 1, 1)),
        ("*:bodies", (0, 1, 1, 1, 1)),
        ("back in time", (0, 0, 0, 4, 0)),
    ],
)
def test_after_a_loss_pages_are_what_is_there(crawl, worker, lost, left):
    client = crawl.client
    worker.add(*"abcd")
    shot = {name: client.dump(name) for name in client.keys(f"{crawl.key}*")}
    worker.take(3)
    worker.fail("a")
    worker.fail("b", kind="404", unparsed=True)
    worker.queue.offer(Entry("x", mark_of("a")))
    worker.say()
    assert crawl.parts == (0, 1, 1, 1, 1)
    client.delete(*client.keys(crawl.key + (lost if lost.startswith("*") else "*")))
    for name, value in shot.items() if lost == "back in time" else ():
        client.restore(name, 0, value)
    assert worker.exchange().start_over
    assert crawl.parts == left


# Runs


def test_many_go_back_in_portions_behind_all_others_and_the_crawl_is_not_over_before(crawl):
    fail_all(crawl, [*map(str, range(300))])
    worker = crawl.join()
    worker.add(*(f"new {number}" for number in range(150)))
    assert crawl.parts == (0, 0, 300, 150, 0)
    order, told, before = [], 0, 300
    while not worker.queue.is_over():
        answer = worker.exchange(40)
        told += answer.fetched_again
        failed = worker.queue.worker.counts.failed
        assert before - failed < 100  # one walk of a hash may return some more than asked for
        before = failed
        order += [each.body.decode() for each in answer.taken]
        if len(order) == 40:  # what fails in this run waits for the next one
            worker.fail(*worker.have)
        worker.done()
    assert len(order) == len({*order}) == 450
    assert told == 300
    assert crawl.parts == (410, 0, 40, 0, 0)
    late = [place for place, name in enumerate(order) if name.startswith("new")]
    assert late[40] < 60


@pytest.fixture
def wait(set_clock):
    """Return what lets seconds pass, five at a time; then these workers renew their leases."""
    passed = 0

    def wait(seconds, *workers):
        nonlocal passed
        for _ in range(seconds // 5):
            passed += 5
            set_clock(START + passed)
            for worker in workers:
                worker.beat()

    return wait


def come(crawl, most=0):
    """Open one more worker, which says no more than it is told to; let it take some."""
    worker = crawl.join()
    stop_beating(worker.queue.link)
    worker.take(most)
    return worker


def test_what_failed_comes_back_with_the_next_worker_and_once_within_an_hour(wait, crawl):
    """Also if that finds others: those that are replaced one by one, or killed a moment ago."""
    one = come(crawl)
    one.add("a")
    for came in (["a"], ["a"], [], []):
        assert one.take(9) == came
        one.fail(*came)
        one.say()
        assert one.queue.is_over()
        wait(60, one)
        come(crawl)
        one.say()
    wait(HOUR, one)
    assert one.take(9) == ["a"]


def test_joins_do_not_delay_the_hourly_retry_of_a_crawl_that_is_never_idle(wait, crawl):
    worker = come(crawl)
    worker.add("busy", "a")
    worker.take(2)
    worker.fail("a")
    worker.say()
    for _ in range(5):
        wait(10 * MINUTE, worker)
        come(crawl)
    wait(10 * MINUTE - 5, worker)
    assert crawl.parts == (0, 0, 1, 0, 1)
    wait(10, worker)
    assert crawl.parts == (0, 0, 0, 1, 1)
    assert worker.take(9) == ["a"]


def test_a_worker_that_crashes_every_minute_does_not_keep_another_from_the_end(wait, crawl):
    """It took back each minute all that had failed meanwhile, and the walk takes five."""
    fail_all(crawl, [*map(str, range(300))])
    wait(5)
    worker, took = come(crawl), 0
    for _ in range(12):
        come(crawl, 2)
        for _ in range(12):
            wait(5, worker)
            some = worker.take(5)
            worker.fail(*some)
            worker.say()
            took += len(some)
        if worker.queue.is_over():
            break
    assert worker.queue.is_over()
    assert took == 300
    assert crawl.account.failed == 300


def test_what_was_redirected_to_a_failed_page_fails_though_no_worker_comes_and_nothing_grows(
    wait, crawl
):
    worker = come(crawl)
    worker.add(*"ab")
    worker.take(2)
    worker.fail("b", kind=REDIRECTED, tries=0, unparsed=True, way=[mark_of("wall")])
    worker.fail("a", way=[mark_of("wall")])
    worker.say()
    wait(HOUR + 10, worker)
    for _ in range(3):
        worker.say()
        wait(5, worker)
    assert sorted(worker.take(9)) == ["a", "b"]
    assert not crawl.client.exists(crawl.base + "failed_ways")


def test_what_a_look_finds_is_looked_for_too_if_it_is_the_first_of_a_run(wait, crawl):
    worker = come(crawl)
    worker.add(*"abc")
    worker.take(3)
    for name, led in (("c", ["inner"]), ("b", ["inner", "wall"])):
        way = [*map(mark_of, led)]
        worker.fail(name, kind=REDIRECTED, tries=0, unparsed=True, way=way)
    worker.fail("a", way=[mark_of("wall")])
    worker.say()
    wait(5, worker)
    come(crawl)
    for _ in range(3):
        worker.say()
    assert crawl.account.unparsed == 0


def test_dates_that_are_lost_alone_are_set_anew_in_portions(crawl):
    names = [*map(str, range(900))]
    fail_all(crawl, names)
    crawl.client.delete(crawl.base + "dates")
    worker, came = crawl.join(), []
    while some := worker.take(50):
        came += some
        worker.done()
        crawl.sweep(by=worker)
    assert sorted(came) == sorted(names)


# Start requests, which each run and each worker may send

FRONT = b"s".ljust(16, b".")


def start(worker):
    """Offer an unfiltered start request, as a run of start() does."""
    worker.queue.offer(Entry("p", None, b"s", source="s", start=FRONT))
    worker.say()


def test_a_start_request_of_many_workers_counts_as_it_ended_last(crawl):
    workers = [crawl.join() for _ in range(3)]
    for worker in workers:
        start(worker)
    for worker, failed in zip(workers, (True, True, False), strict=True):
        worker.exchange(1)
        if failed:
            worker.fail("s", start=FRONT)
        else:
            worker.queue.end(worker.have.pop("s"), Ending(start=FRONT))
        worker.say()
        assert crawl.account.failed == failed
    assert crawl.parts == (1, 0, 0, 0, 0)
    one, two, _ = workers
    start(one)
    one.take(9)
    one.fail("s", start=FRONT)
    one.say()
    assert crawl.parts == (0, 0, 1, 0, 0)
    start(one)
    start(two)
    both = exchange(two.queue, 2, look=True, idle=True).taken
    assert len(both) == 2
    for taken in both:
        two.queue.end(taken, Ending(start=FRONT))
    two.say()
    assert crawl.parts == (1, 0, 0, 0, 0)
