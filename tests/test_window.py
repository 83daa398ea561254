"""A filter that forgets: never early, never late, within its error rate and its memory."""

import copy
import logging
import pickle
from functools import partial

import pytest
from hypothesis import settings
from support.contract import FilterContract, fingerprints
from support.examples import share_of
from support.jobs import everything_in, open_job, stored_job
from support.windows import LONGEST, WINDOW, Clock, JobMachine, JournalMachine, WindowMachine

from scrapy_bloom import LocalFilter
from scrapy_bloom.core.window import WindowedFilter, filter_of
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.options import read_age, read_window, write_span
from scrapy_bloom.storage.snapshot import read_snapshot

PAGES = fingerprints(1000)


class TestWindowedFilter(FilterContract):
    @pytest.fixture
    def make(self):
        return partial(WindowedFilter, 3600)


class MemoryMachine(WindowMachine):
    def open(self):
        self.filter = WindowedFilter(WINDOW, 20, 1e-9, clock=self.clock)


QUICK = settings(deadline=None, max_examples=share_of(60), stateful_step_count=40)
TestInMemory = MemoryMachine.TestCase
TestInMemory.settings = QUICK
TestInJob = JobMachine.TestCase
TestInJob.settings = settings(QUICK, max_examples=share_of(40))
TestInJournal = JournalMachine.TestCase
TestInJournal.settings = settings(QUICK, max_examples=share_of(40))


@pytest.fixture
def clock():
    return Clock()


def windowed(clock, window=WINDOW, **options):
    return WindowedFilter(window, clock=clock, **options)


def test_an_item_is_kept_for_the_window_and_at_most_an_eighth_more(clock):
    for part in range(0, 100, 7):
        seen = windowed(clock)
        seen.add(b"first")  # a generation begins
        clock.now += part
        seen.add(b"page")
        came = clock.now
        clock.now = came + WINDOW - 1
        assert seen.add(b"page")  # which does not prolong it
        clock.now = came + LONGEST
        assert b"page" not in seen
        assert not seen.add(b"page")


@pytest.mark.unmeasured
def test_error_rate_and_memory_hold_in_a_steady_state(clock):
    seen = windowed(clock, capacity=40_000, error_rate=0.01)
    lost = sum(
        sum(seen.add_many(fingerprints(5000, f"part {part}"))) + tick(clock, 100)
        for part in range(24)
    )
    info = seen.info()
    assert info.generations == 9
    assert 39_900 < info.items <= 40_000
    assert info.estimated_fp_rate < 0.01
    assert sum(seen.contains_many(fingerprints(20_000, "other"))) < 200
    assert lost < 24 * 5000 * 0.01
    assert info.bytes < 2 * 40_000 * 2.2


def tick(clock, seconds):
    clock.now += seconds
    return 0


@pytest.mark.unmeasured
def test_memory_holds_after_a_burst_and_goes_with_it(clock):
    seen = windowed(clock, capacity=1000, error_rate=1e-6)
    seen.add_many(fingerprints(100_000, "burst"))
    for part in range(8):
        clock.now += 100
        seen.add_many(fingerprints(200, f"quiet {part}"))
    assert seen.info().generations == 9
    assert seen.info().bytes < 100_000 * 12 * 1.7
    clock.now += 100
    seen.add_many(fingerprints(200, "quiet"))
    assert seen.info().items == 1800
    clock.now += 5000  # a long pause
    seen.add(b"page")
    info = seen.info()
    assert (info.items, info.generations, info.slices, info.capacity) == (1, 1, 1, 1000)


def test_growth_is_told_when_the_window_holds_more_than_it_was_sized_for(clock, caplog):
    seen = windowed(clock, capacity=1000)
    with caplog.at_level(logging.INFO, "scrapy_bloom"):
        seen.add_many(fingerprints(400))
        clock.now += 100
        seen.add_many(fingerprints(400, "b"))  # more than the eighth that it begins with
        assert not caplog.records
        seen.add_many(fingerprints(3000, "c"))
    [record] = caplog.records
    assert record.levelname == "WARNING"


def test_copies_have_their_own_marks_and_the_same_window(clock):
    seen = windowed(clock)
    seen.add_aged(b"a", 1)
    clock.now += 100
    seen.add(b"b")
    for twin in (copy.copy(seen), copy.deepcopy(seen), pickle.loads(pickle.dumps(seen))):
        assert twin.contains_many([b"a", b"b"]) == [True, True]
        assert twin.info() == seen.info()
        twin.add(b"c")
        assert b"c" not in seen
        assert dict(twin.ages) == dict(seen.ages)


def test_to_clear_it_forgets_ages_as_well(clock):
    seen = windowed(clock)
    seen.add_aged(b"a", 100)
    seen.clear()
    assert not seen.add_aged(b"a", 100)


def test_ages_older_than_the_window_take_no_memory(clock):
    seen = windowed(clock)
    for page in PAGES:
        seen.add_aged(page, WINDOW)
    clock.now += LONGEST
    seen.add(b"page")
    assert not seen.ages


def test_without_a_window_ages_work_as_well(clock):
    seen = LocalFilter(clock=clock)
    assert not seen.add_aged(b"list", 60)
    clock.now += 59
    assert seen.add_aged(b"list", 60)
    assert seen.add(b"list")
    clock.now += 1
    assert not seen.add_aged(b"list", 60)
    assert not seen.add_aged(b"list", 0)
    assert not seen.add(b"page")
    assert not seen.add_aged(b"page", 60), "nobody knows when it was let through"
    assert seen.add_aged(b"page", 60)


def test_an_age_counts_anew_where_the_clock_goes_back(clock):
    seen = LocalFilter(clock=clock)
    seen.add_aged(b"list", 60)
    clock.now -= 1000
    assert seen.add_aged(b"list", 60)
    clock.now += 59
    assert seen.add_aged(b"list", 60)
    clock.now += 1
    assert not seen.add_aged(b"list", 60)
    clock.now -= 1
    assert not seen.add_aged(b"list", 0)


# Where it is kept


@pytest.mark.parametrize("made", [None, WINDOW])
@pytest.mark.parametrize("asked", [None, WINDOW, 8 * WINDOW])
def test_a_job_made_with_another_window_is_refused_and_left_as_it_is(tmp_path, made, asked, clock):
    path = stored_job(tmp_path, PAGES, window=made, clock=clock)
    before = everything_in(tmp_path)
    if asked != made:
        with pytest.raises(StateError) as error:
            open_job(tmp_path, window=asked, clock=clock)
        found, expected = (one and write_span(one) for one in (made, asked))
        assert str(error.value) == (
            f"{path}: found a filter made with BLOOM_WINDOW = {found!r}, expected {expected!r}. It"
            f" was left as it is. Set BLOOM_WINDOW = {found!r} again, or choose another JOBDIR, or"
            f" delete this one with 'scrapy bloom delete' to start over."
        )
        assert everything_in(tmp_path) == before
    assert all(open_job(tmp_path, window=made, clock=clock).filter.contains_many(PAGES))


def test_a_snapshot_keeps_window_and_ages(tmp_path, clock):
    job = open_job(tmp_path / "window", clock=clock, window=WINDOW)
    job.filter.add(b"a")
    job.close()
    state = read_snapshot(tmp_path / "window" / "requests.bloom").state
    assert (state.window, state.error_rate) == (WINDOW, 1e-6)
    assert b"a" in filter_of(state, clock=clock)
    assert b"a" not in filter_of(state)
    job = open_job(tmp_path / "aged", clock=clock)
    job.filter.add_aged(b"list", 10)
    job.close()
    again = open_job(tmp_path / "aged", clock=clock)
    assert again.filter.add_aged(b"list", 10)


# What users write


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        *(("30d", 2_592_000), ("12h", 43_200), ("90m", 5400), ("2W", 1_209_600), ("45s", 45)),
        ("1.5h", 5400),
        *((1, 1), ("3600", 3600), (2.5, 2.5), (" 7d ", 604_800), ("36500d", 3_153_600_000)),
    ],
)
def test_a_window_may_be_written_in_these_ways(written, seconds):
    assert read_window("BLOOM_WINDOW", written) == seconds
    assert read_age("age", written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        *(0, -1, "0", "-5d", "30 days", "1e30", 1e30, float("inf"), "nan", "", "d", True, b"30d"),
        *([30], "36501d", 0.5, "thirty", "30dd"),
    ],
)
def test_any_other_window_is_refused_with_what_to_write(written):
    with pytest.raises(SettingError) as error:
        read_window("BLOOM_WINDOW", written)
    assert str(error.value).startswith(f"BLOOM_WINDOW = {written!r}: give a time from 1 second")
    assert "'30d'" in str(error.value)


def test_none_is_for_ever_in_settings_only():
    assert read_window("BLOOM_WINDOW", None) is None
    with pytest.raises(SettingError, match="LocalFilter"):
        WindowedFilter(None)
    with pytest.raises(SettingError, match="window = 0"):
        WindowedFilter(0)


@pytest.mark.parametrize("written", ["30d", "12h", "90m", "2w", "45s", "2.5s"])
def test_a_time_is_shown_as_it_was_written(written):
    assert write_span(read_window("x", written)) == written
