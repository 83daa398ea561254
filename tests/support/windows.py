"""A window against a simple model: a dict of what was let through, and when."""

from __future__ import annotations

import shutil
from itertools import count
from math import inf
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scrapy_bloom import RedisFilter
from scrapy_bloom.core.growth import MOST_GENERATIONS
from scrapy_bloom.frontier import file
from scrapy_bloom.frontier.opening import replay
from scrapy_bloom.frontier.store import Store
from scrapy_bloom.layers.exact import NOTE, PREFIX, ExactFilter, ExactLists
from scrapy_bloom.session.local_crawl import FrozenExact
from scrapy_bloom.storage import unclean
from support.contract import fingerprints
from support.internals import forget_own_dates
from support.jobs import open_job
from support.localredis import keys

WINDOW = 800
LONGEST = 900  # 9/8 of it
PAGES = fingerprints(12, "page")
START = 1_000_000_000


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = float(START)

    def __call__(self):
        return self.now


class WindowMachine(RuleBasedStateMachine):
    """Subclasses open a filter with this clock, and may stop and kill what keeps it.

    Time that has passed is counted apart from the clock, which may be set: `passed` only grows.
    """

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.passed = 0
        self.set_back = -LONGEST  # when the clock was last set back
        self.known = {}  # fingerprint -> when it was let through, in `passed`
        self.ages = {}  # fingerprint -> when its page was let through for its age, on the clock
        self.lapsed = set()  # those for which that is so long ago that it may be dropped
        self.redated = set()  # those for which that counts as of now since the clock was set back
        self.fresh = count()
        self.open()

    def open(self):
        raise NotImplementedError

    def marked(self, fingerprint):
        """Is told of each fingerprint that was let through."""

    def forgot(self, fingerprint):
        """Is told of each fingerprint that was there and was forgotten."""

    @rule(page=st.sampled_from(PAGES))
    def add(self, page):
        self.check(page, self.filter.add(page))

    @rule(pages=st.lists(st.sampled_from(PAGES), max_size=5))
    def ask(self, pages):
        for page, seen in zip(pages, self.filter.contains_many(pages), strict=True):
            self.judge(page, seen)

    @rule(size=st.sampled_from([1, 10, 100]))
    def burst(self, size):
        pages = fingerprints(size, f"fresh {next(self.fresh)}")
        for page, seen in zip(pages, self.filter.add_many(pages), strict=True):
            self.check(page, seen)

    @rule(page=st.sampled_from(PAGES), age=st.sampled_from([0, 1, 50, 300, WINDOW]))
    def add_aged(self, page, age):
        last = self.ages.get(page)
        if last is not None and last > self.clock.now:
            last = self.ages[page] = self.clock.now
            self.redated.add(page)
        expected = last is not None and self.clock.now - last < age
        seen = self.filter.add_aged(page, age)
        assert seen is expected or self.may_differ(page, seen, age)
        if not seen:
            self.ages[page] = self.clock.now
            self.lapsed.discard(page)
            self.redated.discard(page)
            self.let_through(page)

    def may_differ(self, page, seen, age):
        """Return whether a page with an age may be new though it was let through, or seen still."""
        # What counts as of now after the clock was set back is not in the journal: after a kill
        # that is done once more.
        if seen:
            return page in self.redated and age > 0
        return page in self.lapsed or self.passed - self.known.get(page, -LONGEST) >= WINDOW

    @rule(page=st.sampled_from(PAGES))
    def forget(self, page):
        found = self.filter.forget(page)
        self.judge(page, found)
        self.ages.pop(page, None)
        if found:  # else it is too old, and comes back if the clock is set back before a kill
            self.known.pop(page, None)
            self.forgot(page)

    @rule(seconds=st.sampled_from([1, 30, 99, 100, 101, 250, 799, 800, 900, 5000]))
    def wait(self, seconds):
        self.clock.now += seconds
        self.passed += seconds
        self.lapse()

    def lapse(self):
        now = self.clock.now
        self.lapsed.update(page for page, last in self.ages.items() if now - last >= WINDOW)

    @rule(seconds=st.sampled_from([1, 30, 100, 450, 3000]))
    def set_clock_back(self, seconds):
        self.clock.now -= seconds
        self.set_back = self.passed

    @rule(back=st.booleans())
    def look_at_all(self, back):
        """Ask for everything that there ever was."""
        pages = sorted(self.known, reverse=back)
        for page, seen in zip(pages, self.filter.contains_many(pages), strict=True):
            self.judge(page, seen)

    @invariant()
    def there_are_few_generations(self):
        info = self.filter.info()
        assert info.generations <= MOST_GENERATIONS
        assert info.oldest <= info.newest <= self.clock.now
        assert info.estimated_fp_rate <= info.error_rate

    def check(self, page, seen):
        self.judge(page, seen)
        if not seen:
            self.let_through(page)

    def judge(self, page, seen):
        """Compare a verdict with what the model allows."""
        came = self.known.get(page)
        if came is None:
            assert not seen
        elif self.passed - came < WINDOW:
            assert seen
        elif came >= self.set_back + LONGEST and self.passed - came >= LONGEST:
            # While generations from before the clock was set back are there, later ones may have
            # to wait for their end.
            assert not seen

    def let_through(self, page):
        self.known[page] = self.passed
        self.marked(page)


class RedisMachine(WindowMachine):
    """Two workers of one filter in Redis, by the clock of the server. Subclasses give both.

    Attributes:
        server: the server.
        layout: how the filter is stored.
        set_clock: sets what the server takes for the time.
        error_rate: as for the filter.
    """

    error_rate = 1e-9

    def open(self):
        self.key = next(keys)
        self.workers = [self.join(), self.join()]
        self.turn = 0

    def join(self):
        self.set_clock(self.clock.now)
        return RedisFilter.from_url(
            self.server.url,
            key=self.key,
            layout=self.layout,
            cache=0,
            capacity=20,
            error_rate=self.error_rate,
            window=WINDOW,
        )

    @property
    def filter(self):
        """The workers take turns, and find the server at the time that it is."""
        self.set_clock(self.clock.now)
        self.turn = 1 - self.turn
        worker = self.workers[self.turn]
        forget_own_dates(worker)  # which it takes from a clock that nobody sets
        return worker

    @invariant()
    def there_are_few_generations(self):
        info = self.filter.info()
        assert info.generations <= MOST_GENERATIONS + 1  # one may wait to be dropped by a call
        assert info.estimated_fp_rate <= info.error_rate

    @rule(number=st.integers(0, 1))
    def stop_and_start(self, number):
        self.workers[number].close()
        self.workers[number] = self.join()

    def teardown(self):
        for worker in self.workers:
            worker.close()


class InFolder(WindowMachine):
    """One that is kept in a job directory."""

    def __init__(self):
        self.folder = Path(mkdtemp())
        self.kept = ({}, {}, set())
        super().__init__()

    def teardown(self):
        self.leave()
        shutil.rmtree(self.folder)

    def leave(self):
        """Let go of the folder as a kill does."""
        self.job.release()

    def keep(self):
        self.kept = (dict(self.known), dict(self.ages), set(self.lapsed))

    def go_back(self):
        self.known, self.ages, self.lapsed = (part.copy() for part in self.kept)
        self.lapse()

    @rule()
    def kill(self):
        self.leave()
        self.go_back()
        self.open()


class JobMachine(InFolder):
    """Kept at clean stops, as with Scrapy's scheduler."""

    def open(self):
        self.job = open_job(
            self.folder, capacity=20, error_rate=1e-9, window=WINDOW, clock=self.clock
        )
        self.filter = self.job.filter

    @rule()
    def stop(self):
        self.job.close()
        self.keep()
        self.open()

    @rule()
    def kill(self):
        """Start over, as a crawl does: nothing of the killed run is believed."""
        self.leave()
        unclean.put_aside(self.folder, filter_too=True)
        self.kept = ({}, {}, set())
        self.go_back()
        self.open()


class JournalMachine(InFolder):
    """Kept with every commit, as with our scheduler.

    If the clock is set back, marks of the journal that are of the future then count as of each
    start until there is a snapshot: so they may be kept for longer.
    """

    @rule(seconds=st.sampled_from([1, 30, 100, 450, 3000]))
    def set_clock_back(self, seconds):
        self.clock.now -= seconds
        self.set_back = inf

    def open(self):
        path = self.folder / "requests.sqlite"
        if not path.exists():
            file.create(path, lambda _: None)
        self.job = open_job(
            self.folder,
            capacity=20,
            error_rate=1e-9,
            window=WINDOW,
            clock=self.clock,
            journaled=True,
        )
        self.filter = self.job.filter
        self.store = Store(path)
        replay(self.store, self.filter)
        self.store.follow(self.filter)
        self.filter.forgotten.update(self.store.withheld)

    def leave(self):
        self.store.abandon()
        self.job.release()

    def marked(self, fingerprint):
        self.store.mark([fingerprint])

    def forgot(self, fingerprint):
        self.store.withhold([fingerprint])

    @rule()
    def commit(self):
        self.store.commit()
        self.keep()

    @rule()
    def snapshot(self):
        newest = self.store.newest_mark()
        frozen = self.job.freeze()
        frozen.write()
        self.commit()
        frozen.put_in_place()
        self.store.forget(newest)
        self.commit()

    @rule()
    def stop(self):
        self.commit()
        self.snapshot()
        self.store.close()
        self.job.close()
        self.open()


class ExactMachine(JournalMachine):
    """With exact lists. What the filter takes for seen wrongly must not count."""

    def begin(self):
        self.lists = ExactLists(self.folder, self.filter)
        noted = self.store.noted(NOTE)
        if noted and self.job.restored_from:
            self.lists.resume(str(noted))
        else:
            self.lists.begin()
        if (note := self.lists.note()) != noted:
            self.store.note(NOTE, note)
            self.store.commit()

    def freeze(self):
        self.frozen = self.lists.freeze()
        return FrozenExact(self.job.freeze(), self.frozen)

    def open(self):
        path = self.folder / "requests.sqlite"
        if not path.exists():
            file.create(path, lambda _: None)
        self.job = open_job(
            self.folder,
            capacity=20,
            error_rate=1e-9,
            window=WINDOW,
            clock=self.clock,
            on_growth=int,
            journaled=True,
        )
        self.store = Store(path)
        self.filter = ExactFilter(self.job.filter)
        self.begin()
        replay(self.store, self.filter)
        self.store.follow(self.job.filter)
        self.filter.forget_many(self.store.withheld)

    def leave(self):
        self.store.abandon()
        self.filter.close()
        self.job.release()

    @rule(seconds=st.sampled_from([WINDOW - 1, LONGEST]), pages=st.sets(st.sampled_from(PAGES)))
    def come_back(self, seconds, pages):
        """Ask for pages again just before their time is over, or when it is."""
        for page in sorted(pages):
            self.add(page)
        for part in (seconds // 2, seconds - seconds // 2):
            self.commit()
            self.wait(part)
            self.burst(1)
        self.look_at_all(back=False)

    @rule(steps=st.integers(0, 4), page=st.sampled_from(PAGES))
    def snapshot(self, steps=4, page=None):
        """Make a snapshot, up to some step, as the upkeep of a crawl does; then it is killed."""
        newest = self.store.newest_mark()
        frozen = self.freeze()
        if page:
            self.add(page)
        if steps > 0:
            frozen.write()
        if steps > 1:
            for key, value in frozen.written().items():
                self.store.note(key, value)
        if steps > 2:
            self.commit()
        if steps > 3:
            frozen.put_in_place()
            frozen.placed()
            self.store.forget(newest)
            self.commit()
        else:
            if steps == 1:
                self.frozen.drop()
            self.kill()

    @rule()
    def snapshot_that_fails(self):
        """Make a snapshot that cannot be written; the crawl goes on."""
        self.freeze()

    @rule()
    def stop(self):
        self.commit()
        self.snapshot()
        self.store.close()
        self.filter.close()
        self.job.close()
        self.open()

    @invariant()
    def lists_go_with_their_generation(self):
        named = {one.file.path for one in self.filter.lists}
        assert named <= set(self.folder.glob(f"{PREFIX}*"))
