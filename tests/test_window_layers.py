"""Exact lists around a filter that forgets, against a model."""

import pytest
from hypothesis import settings
from support.contract import fingerprints
from support.lossy import LossyWindow
from support.windows import LONGEST, START, WINDOW, Clock, ExactMachine

from scrapy_bloom.core.window import WindowedFilter
from scrapy_bloom.layers.exact import ExactFilter, ExactLists

QUICK = settings(deadline=None, max_examples=12, stateful_step_count=25)


def run(machine, **options):
    case = type("Machine", (machine,), {}).TestCase
    case.settings = settings(QUICK, **options)
    case("runTest").debug()


@pytest.mark.unmeasured
@pytest.mark.long
def test_no_new_page_is_seen_and_none_is_forgotten_early(monkeypatch):
    monkeypatch.setattr("scrapy_bloom.storage.store.WindowedFilter", LossyWindow)
    run(ExactMachine)


@pytest.mark.unmeasured
@pytest.mark.long
def test_it_is_so_with_a_good_filter_too():
    run(ExactMachine)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def poor(clock):
    """A filter with a page in it, and other pages that it takes for seen because of that one."""
    inner = LossyWindow(WINDOW, 100, clock=clock)
    inner.add(b"first")
    return inner, [page for page in fingerprints(200) if page in inner]


def test_a_mistake_that_was_caught_is_kept_for_the_window(clock, poor):
    inner, mistaken = poor
    kept = ExactFilter(inner)
    clock.now = START + WINDOW - 1
    page = next(page for page in mistaken if page in inner)
    assert not kept.add(page)
    clock.now += WINDOW - 1
    assert kept.add(page)


@pytest.mark.parametrize("listed", [False, True])
def test_a_page_whose_time_is_over_is_new_whatever_the_filter_says(clock, tmp_path, listed):
    inner = LossyWindow(WINDOW, 100, clock=clock)
    with ExactFilter(inner) as exact:
        lists = ExactLists(tmp_path, exact)
        lists.begin()
        pages = fingerprints(200)
        exact.add_many(pages)
        if listed:
            frozen = lists.freeze()
            frozen.write()
            frozen.use()
            frozen.tidy_up()
        clock.now = START + LONGEST
        exact.add(b"other")
        assert any(inner.contains_many(pages))
        assert not any(exact.contains_many(pages))
        assert not any(exact.add_many(pages))
        assert exact.false_positives > 0
        frozen = lists.freeze()
        frozen.write()
        frozen.use()
        frozen.tidy_up()
        assert [one.since for one in exact.lists] == [START + LONGEST]
        assert len([*tmp_path.iterdir()]) == 1


# The clock goes back to before the layer came


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_the_exact_filter_forgets_nothing_then_and_stays_exact(clock, tmp_path, restarts):
    old, new = fingerprints(50, "old"), fingerprints(50, "new")
    exact = ExactFilter(WindowedFilter(WINDOW, clock=clock))
    exact.inner.add_many(old)
    lists = ExactLists(tmp_path, exact)
    lists.begin()
    clock.now += 100
    exact.add_many(new)
    frozen = lists.freeze()
    frozen.write()
    noted, state = frozen.use(), exact.inner.state()
    clock.now = START - 5000
    for _ in range(restarts):  # and killed before there is another snapshot
        exact.close()
        exact = ExactFilter(WindowedFilter.windowed_from_state(state, clock=clock))
        lists = ExactLists(tmp_path, exact)
        lists.resume(noted)
        noted = lists.note()
        clock.now += 1
    for seconds in (0, WINDOW - 1):
        clock.now += seconds
        assert all(exact.contains_many([*old, *new]))
        assert not any(exact.inner.was_in(page, exact.old) for page in new)
    clock.now += 101
    assert not any(exact.contains_many([*old, *new]))
    exact.close()


def test_nor_does_it_take_later_marks_for_old_ones_that_have_gone(clock):
    exact = ExactFilter(WindowedFilter(WINDOW, clock=clock))
    exact.inner.add(b"old")
    exact.inner.begin_after(exact.inner.until_now())
    clock.now += LONGEST
    exact.add(b"new")
    clock.now = START - 1
    assert exact.add(b"new")
    assert not exact.inner.was_in(b"new", exact.old)
