"""The queue in Redis: what goes in comes out once, in its order, whoever dies meanwhile."""

from types import SimpleNamespace

import pytest
from support import short_leases
from support.internals import stop_beating
from support.proxy import Proxy
from support.queues import Crawler, let_die, mark_of, name_of
from support.waiting import until
from support.windows import START

from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.errors import BackendError
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.hang import Hang
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.wire import DONE, Call, NewFailedRow
from scrapy_bloom.redis.worker import MOST_DEATHS

LARGE = 1_000_000


def test_a_page_that_is_asked_for_and_then_forgotten_in_one_call_is_not_known(worker):
    """Its next request would be dropped, though its page is eligible again."""
    worker.offer("a", "b")
    worker.queue.offer(Entry("x", mark_of("a"), source="a"))
    worker.say()
    assert [worker.queue.worker.knows(mark_of(page)) for page in "ab"] == [False, True]


# Workers that die


def test_a_request_that_kills_its_workers_is_put_aside_alone(crawl):
    """Those that die have its neighbours, too, and a worker takes one risky request at a time."""
    rescuer = crawl.join()
    rescuer.add(*"abcdef")
    deaths, done = 0, []
    while not (failed := [*rescuer.queue.reader.failed()]):
        victim = crawl.join()
        had = victim.take(6)
        if "a" in had:
            deaths += 1
            crawl.bury(victim, by=rescuer)
        else:
            done += had
            victim.done()
            victim.queue.close()
        assert deaths <= MOST_DEATHS
    assert deaths == MOST_DEATHS
    assert [row.request.body for row in failed] == [b"a"]
    assert sorted(done + rescuer.drain()) == list("bcdef")


def test_a_request_that_may_be_given_up_next_does_not_hold_up_its_host(crawl):
    """It waits for a worker that has nothing else, which may be a long time."""
    busy = crawl.join()
    busy.add("other")
    busy.take(1)
    busy.add(*"abcde")
    for _ in range(MOST_DEATHS - 1):
        victim = crawl.join()
        victim.take(2)
        crawl.bury(victim, by=busy)
    assert [busy.take(2) for _ in range(3)] == [["c", "d"], ["e"], []]
    assert [crawl.join().take(3) for _ in range(3)] == [["a"], ["b"], []]


def test_a_worker_that_was_taken_for_dead_learns_that_and_knows_nothing(crawl):
    """Not even that nothing is left. With nothing to say, it stood still for ever."""
    one, two = crawl.join(), crawl.join()
    two.say()
    one.add("a")
    crawl.bury(two, by=one)
    assert two.queue.prepare(0) is None
    two.beat()
    assert not two.queue.has_lease
    assert two.queue.prepare(0) is not None
    assert two.exchange().void
    two.beat()  # before its first call: it was refused, and after that all calls were
    assert not two.queue.is_over()
    assert two.queue.has_lease
    assert two.queue.prepare(0) is None


def test_a_worker_that_is_cut_off_has_no_lease_and_a_call_to_make(server, key, crawl, monkeypatch):
    """Closing the crawl made it over and over, without end and without a pause."""
    other = crawl.join()
    with Proxy(server.port, counted=name_of("open")) as proxy, Crawler(proxy.url, key) as worker:
        worker.say()
        crawl.bury(worker, by=other)
        proxy.faults = dict.fromkeys(range(1, 99), "reset")
        for _ in range(2):
            with pytest.raises(BackendError):
                worker.exchange()
            assert worker.queue.has_work
            assert worker.queue.prepare(0) is not None
        proxy.faults = {}
        worker.say()
        assert worker.queue.surprises == 1
        assert not worker.queue.has_work
        assert worker.queue.has_lease
        with proxy.down(), monkeypatch.context() as patched:
            stop_beating(worker.queue.link)
            patched.setattr(upkeep, "LEASE", 0.01)
            until(lambda: not worker.queue.has_lease)
        worker.exchange()
        assert worker.queue.has_lease


def test_what_dead_workers_had_comes_back_in_portions(server, key, crawl):
    """Also what a scan left out: one of a hash does not survive a restart of the server."""
    rescuer, victim, other = crawl.join(), crawl.join(), crawl.join()
    rescuer.add(*range(1000), slot="a")
    for _ in range(4):
        victim.exchange(250)
    let_die(server, key, victim.queue)
    counts = []
    while crawl.left[1]:
        crawl.sweep(by=rescuer)
        counts.append(crawl.left[1])
    assert len(counts) > 1
    assert crawl.left == (1000, 0, 0)
    other.exchange(3)
    name = other.queue.worker.name
    crawl.client.hdel(key, f"w:{name}", f"a:{name}", "sweep")
    crawl.sweep(by=rescuer)
    assert crawl.left == (1000, 0, 0)


def test_what_is_kept_of_dead_workers_is_bounded(crawl, worker):
    """Each sweep read the records of a day: with a kill a second these were 86,400."""
    now = crawl.client.time()[0]
    records = {f"w:{n}": f"7 dead {now - n}" for n in range(1000)}
    crawl.client.hset(crawl.key, mapping=records)
    crawl.sweep(by=worker)
    kept = {name.decode() for name in crawl.client.hkeys(crawl.key)}
    assert {*records} & kept == {*[*records][:200]}


# Workers that stand still


def test_a_page_that_blocks_its_workers_for_longer_each_time_is_put_aside(crawl):
    rescuer = crawl.join()
    rescuer.add("a")
    for _ in range(MOST_DEATHS):
        victim = crawl.join()
        assert victim.take(1) == ["a"]
        victim.queue.worker.resign(None)
        assert not victim.queue.has_lease
        crawl.sweep(by=rescuer)
        assert victim.exchange().void
        victim.queue.close()
    assert crawl.left == (0, 0, 0)
    (failed,) = rescuer.queue.reader.failed()
    assert failed.failed.kind == "workers were blocked by it"


def test_a_page_that_is_known_to_block_its_worker_fails_and_the_others_come_back(crawl):
    rescuer, victim = crawl.join(), crawl.join()
    victim.offer(*"abc")
    victim.take(3)
    page = victim.have["a"]
    why = FailedPage("blocked", "", 1.7e9, 1, "", unparsed=False, way=(), body=page.body)
    victim.queue.worker.resign(NewFailedRow(page.id, b"", why, page, (mark_of("c"),)))
    crawl.sweep(by=rescuer)
    rescuer.offer(*"ac")
    assert rescuer.say(4) == ["c"]
    assert {name: taken.deaths for name, taken in rescuer.have.items()} == {"b": 0, "c": 0}
    assert crawl.left[2] == 1


@pytest.mark.parametrize(("seconds", "going"), [(95, True), (1000, False)])
def test_a_lease_may_be_given_up_when_generations_have_expired(set_clock, crawl, seconds, going):
    """Written back without its only one, the filter counted as damaged; of some no key went."""
    victim = crawl.join(window=80)
    stop_beating(victim.queue.link)
    victim.add("a")
    set_clock(START + 15)
    victim.add("b")
    victim.take(1)
    set_clock(START + seconds)
    page = victim.have["a"]
    why = FailedPage("blocked", "", 1.7e9, 1, "", unparsed=False, way=(), body=page.body)
    victim.queue.worker.resign(NewFailedRow(page.id, b"", why, page, (mark_of("c"),)))
    assert bool(crawl.client.hget(crawl.key, "going")) is going
    assert crawl.join(window=80).add("b") == ([] if going else ["b"])


@pytest.mark.parametrize(("share", "keeps"), [(0.9, True), (1.1, False)])
def test_a_blocked_event_loop_may_cost_the_lease(crawl, monkeypatch, caplog, share, keeps):
    """Callbacks of 40 and 50 s are no reason. While pipelines close, nobody asks."""
    short_leases.shorten(monkeypatch)
    worker, asked = crawl.join(), []
    worker.offer("a")
    worker.take(1)

    def blocked():
        asked.append(1)
        return share * upkeep.BLOCKED

    nobody = SimpleNamespace(running=lambda _: None)
    hang = Hang(worker.queue.link, worker.queue.worker, nobody, None)
    hang.pulse = SimpleNamespace(blocked=blocked, stack=list)
    until(lambda: len(asked) > 3)
    hang.pulse = None
    assert (b"blocked" not in b"".join(crawl.client.hvals(crawl.key))) is keeps
    assert caplog.text.count("gives up its lease") == (not keeps)
    assert worker.exchange().void is not keeps


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_clock_that_is_moved_or_a_server_that_stood_still_makes_nobody_dead(
    set_clock, crawl, seconds
):
    one, two = crawl.join(), crawl.join()
    for worker in (one, two):
        stop_beating(worker.queue.link)
    one.offer(*range(4))
    one.take(2)
    two.say()
    for later in range(3):
        set_clock(START + seconds + later)
        two.beat()
    assert not one.exchange().void
    assert crawl.left == (2, 2, 0)
    assert two.queue.worker.requeued == 0
    held_for = [seconds for *_, seconds in two.queue.reader.in_flight()]
    assert all(0 <= seconds < 2 * 3600 for seconds in held_for)


def test_a_clock_that_was_rounded_is_not_one_that_was_moved(set_clock, crawl):
    """Two heartbeats within half a millisecond let the sweep wait for a whole lease again."""
    set_clock(1000.0004)
    worker = crawl.join()
    stop_beating(worker.queue.link)
    for last, now, contact_since in (
        ("1000.001", 1000.0004, b"1.000"),
        ("1000.000", 1001.5, b"1.000"),
        ("1002.000", 1000.5, b"1000.500"),
    ):
        times = {"contact_since": "1.000", "last_contact": last, "swept": last, "skew": 0}
        crawl.client.hset(crawl.key, mapping=times)
        set_clock(now)
        worker.beat()
        assert crawl.client.hget(crawl.key, "contact_since") == contact_since


# Requests that may be large: only their heads move, and no body outlives its request


def test_no_script_moves_a_body_but_to_hand_it_out(crawl, worker):
    """All others wait while a script runs: it reads many requests, and may not read large ones."""
    names = [str(number) + LARGE * "x" for number in range(5)]
    worker.offer(*names)
    worker.add("later" + LARGE * "x", wait=900)
    assert worker.take(2) == names[:1]  # and no more, as there is room for one
    worker.fail(names[0])
    worker.say()
    assert worker.take(1) == names[1:2]
    assert crawl.left == (4, 1, 1)
    for name in ("queue", "later", "taken", "failed"):
        assert crawl.client.memory_usage(crawl.base + name, samples=0) < LARGE / 1000, name
    assert sum(map(len, crawl.client.hvals(crawl.base + "bodies"))) > 6 * LARGE


def test_bodies_go_with_their_requests_though_others_have_some_of_them(crawl, worker):
    """A worker that was taken for dead says that it is finished with all that it had."""
    other = crawl.join()
    worker.offer("a")
    had = [worker.have[name] for name in worker.take(1)]
    crawl.bury(worker, by=other)
    assert other.take(1) == ["a"]
    worker.offer("b")
    had += [worker.have[name] for name in worker.take(1)]
    worker.queue.worker.call(Call(ended={DONE: [each.id for each in had]}))
    assert crawl.left == (0, 1, 0)
    assert crawl.client.hlen(crawl.base + "bodies") == 1


def test_a_call_takes_as_many_as_it_has_room_for_and_the_first_in_any_case(worker):
    sizes = [2 * LARGE, LARGE // 2, LARGE // 3, LARGE // 3, 10]
    worker.add(*(str(number) + size * "x" for number, size in enumerate(sizes)))
    assert [len(worker.take(5)) for _ in range(4)] == [1, 2, 2, 0]


@pytest.mark.parametrize(("count", "size"), [(5, 400_000), (501, 0)])
def test_more_failed_requests_than_one_call_takes_go_with_the_next_ones(crawl, worker, count, size):
    names = [str(number) + size * "x" for number in range(count)]
    worker.add(*names, filtered=False)
    while len(worker.have) < len(names):
        worker.exchange(count)
    worker.fail(*names)
    worker.exchange()
    assert 0 < crawl.account.failed < count
    while worker.queue.has_work:
        worker.exchange()
    assert crawl.parts == (0, 0, count, 0, 0)
