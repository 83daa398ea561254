"""What must not be sent yet in a job: rows that wait, through stops, kills and changed clocks."""

import sqlite3
from contextlib import closing

import pytest
from scrapy.pqueues import DownloaderAwarePriorityQueue
from support.backends import HOUR
from support.contract import lines_of
from support.internals import database_of, store_of

from scrapy_bloom import stats
from scrapy_bloom.crawl import later
from scrapy_bloom.local import later as module
from scrapy_bloom.local import queue
from scrapy_bloom.local.later import stored_holds, stored_requests


@pytest.mark.parametrize(("shift", "left"), [(5, 5), (-30, 10)])
async def test_what_waits_waits_on_in_the_next_run(in_job, shift, left):
    """A clock that was set back while no crawl ran costs at most the wait."""
    run = await in_job.open()
    await run.offer("a", wait=10 * HOUR)
    run.backend.hold(run.request("b", host="b"), 20 * HOUR)
    await run.say()
    await in_job.kill()
    wall = in_job.real[1]
    in_job.real = in_job.real[0], lambda: wall() + shift * HOUR  # the other clock begins anew
    run = await in_job.open()
    assert len(run.backend) == run.backend.later == 1
    for hours, names, held in ((left - 1, [], True), (2, ["a"], True), (10, [], False)):
        in_job.wait(hours * HOUR)
        assert await run.take() == names
        assert bool(run.backend.held_until(run.request("b", host="b"))) is held


async def test_many_slots_that_are_left_alone_cost_nothing(in_job):
    """Each hold wrote all of them, and each request that was taken hid them and showed them."""
    in_job.queue, sizes, lines = DownloaderAwarePriorityQueue, [], []
    run = await in_job.open()
    backend, store = run.backend, store_of(run.backend)
    for count in (1, 1000):
        for number in range(count):
            await run.offer("a", host=f"held-{count}-{number}", filtered=False)
            backend.hold(run.request("a", host=f"held-{count}-{number}"), HOUR)
        await run.say()
        before = {*store.meta.items()}
        backend.hold(run.request("a", host="another"), (1 + count) * HOUR)
        sizes.append(sum(len(note) for _, note in {*store.meta.items()} - before))
        await run.offer("a", host="free", filtered=False)
        lines.append(lines_of((later, module, queue), backend.take))
    assert sizes[1] < 20 * sizes[0]
    assert lines[1] == lines[0]
    assert len(stored_holds(store.meta)) == 1002


async def test_what_is_put_aside_is_bounded_and_moves_in_portions(in_job):
    run = await in_job.open()
    names = [*map(str, range(150))]
    await run.offer(*names)
    run.backend.hold(run.request("a"), HOUR)
    for count in 100, 150:
        assert run.backend.take() is None
        assert (run.backend.later, len(run.backend)) == (count, 150)
    in_job.wait(2 * HOUR)
    assert sorted(await run.take(), key=int) == names


async def test_what_cannot_be_read_stays_and_is_listed(in_job):
    run = await in_job.open()
    await run.offer("a", "b", wait=HOUR)
    await run.say()
    with closing(sqlite3.connect(in_job.folder / "bloom.sqlite")) as other:
        other.execute(
            "UPDATE requests SET body = zeroblob(99) WHERE id = (SELECT min(id) FROM requests)"
        )
        other.commit()
    assert [each.body is None for each in stored_requests(store_of(run.backend))] == [True, False]
    await in_job.kill()
    run = await in_job.open()
    in_job.wait(2 * HOUR)
    assert await run.take() == ["b"]
    assert run.crawler.stats.get_value(stats.UNREADABLE.key) == 1
    run.end("b")
    await run.say()
    assert len(store_of(run.backend)) == 1


async def test_a_row_that_is_missing_is_damage(in_job):
    run = await in_job.open()
    await run.offer("a", wait=HOUR)
    await run.say()
    database_of(store_of(run.backend)).execute("DELETE FROM requests")
    in_job.wait(2 * HOUR)
    assert run.backend.take() is None
    assert run.backend.broken


async def test_priorities_are_kept(in_job):
    run = await in_job.open()
    for priority in (-5, 7, 2**70):
        await run.offer("a", wait=HOUR, filtered=False, priority=priority)
    stored = stored_requests(store_of(run.backend))
    assert [each.priority for each in stored] == [-5, 7, 2**63 - 1]
