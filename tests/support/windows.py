"""A window against a simple model: a dict of what was let through, and when."""

from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scrapy_bloom.filter.sizing import MOST_GENERATIONS
from support.contract import fingerprints

WINDOW = 800
LONGEST = 900  # 9/8 of it
PAGES = fingerprints(12, "page")
START = 1_000_000_000


class Clock:
    def __init__(self):
        self.now = float(START)

    def __call__(self):
        return self.now


class WindowMachine(RuleBasedStateMachine):
    """Subclasses open a filter with this clock, and may stop and kill what keeps it.

    Time that has passed is counted apart from the clock, which may be set: `passed` only grows.

    Attributes:
        window: of the filter; without one it forgets nothing by itself.
    """

    window = WINDOW

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.passed, self.set_back = 0, -LONGEST  # and when the clock was last set back
        self.known = {}  # fingerprint -> when it was let through, in `passed`
        self.ages = {}  # fingerprint -> when its page was let through for its age, on the clock
        self.lapsed = set()  # those for which that is so long ago that it may be dropped
        self.fresh = count()
        self.open()

    @rule(page=st.sampled_from(PAGES))
    def add(self, page):
        self.check(page, self.filter.add(page))

    @rule(pages=st.lists(st.sampled_from(PAGES), max_size=5))
    def ask(self, pages):
        self.ask_for(pages)

    def ask_for(self, pages):
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
        expected = page in self.known and last is not None and self.clock.now - last < age
        seen = self.filter.add_aged(page, age)
        if seen is not expected:  # it may be new, though it was let through, if that is long ago
            assert self.window
            assert not seen
            long_ago = self.passed - self.known.get(page, -LONGEST) >= WINDOW
            assert page in self.lapsed or long_ago
        if not seen:
            self.ages[page] = self.clock.now
            self.lapsed.discard(page)
            self.known[page] = self.passed

    @rule(page=st.sampled_from(PAGES))
    def forget(self, page):
        found = self.filter.forget(page)
        self.judge(page, found)
        self.ages.pop(page, None)
        if found:  # else it is too old, and comes back if the clock is set back before a kill
            self.known.pop(page, None)

    @rule(seconds=st.sampled_from([1, 30, 99, 100, 101, 250, 799, 800, 900, 5000]))
    def wait(self, seconds):
        self.clock.now += seconds
        self.passed += seconds
        now = self.clock.now
        self.lapsed.update(page for page, last in self.ages.items() if now - last >= WINDOW)

    @rule(seconds=st.sampled_from([1, 30, 100, 450, 3000]))
    def set_clock_back(self, seconds):
        self.clock.now -= seconds
        self.set_back = self.passed
        if self.ages:
            self.add_aged(min(self.ages), 300)

    @rule(back=st.booleans())
    def look_at_all(self, back):
        self.ask_for(sorted(self.known, reverse=back))

    @invariant()
    def there_are_few_generations(self):
        info = self.filter.info()
        if self.window:
            assert info.generations <= MOST_GENERATIONS
            assert info.oldest <= info.newest <= self.clock.now
        assert info.estimated_fp_rate <= info.error_rate

    def check(self, page, seen):
        self.judge(page, seen)
        if not seen:
            self.known[page] = self.passed

    def judge(self, page, seen):
        """Compare a verdict with what the model allows."""
        came = self.known.get(page)
        if came is None:
            assert not seen
        elif not self.window or self.passed - came < WINDOW:
            assert seen
        elif came >= self.set_back + LONGEST and self.passed - came >= LONGEST:
            # While generations from before the clock was set back are there, later ones may have
            # to wait for their end.
            assert not seen
