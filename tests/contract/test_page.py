"""The law of how pages end, whatever happens to them, and in any order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scrapy_bloom.crawl.outcomes import Reason
from scrapy_bloom.crawl.page import BECOMES, Event, Page, State
from scrapy_bloom.crawl.waits import hold_up

FAILS = {Event.BROKEN, Event.LOST, Event.FAILED}
FAILED = {State.BAD, State.FAILED}


def test_the_table_says_for_each_state_what_comes_of_each_event():
    assert [len(row) for row in BECOMES] == [len(Event)] * len(State)
    for state in State:
        assert BECOMES[state][Event.KEPT] is State.KEPT
        assert BECOMES[state][Event.FAILED] in (State.FAILED, State.KEPT)
        for event in Event:
            after = BECOMES[state][event]
            assert state is not State.KEPT or after is State.KEPT  # for good
            assert state is not State.FAILED or after in (State.FAILED, State.KEPT)  # likewise
            if after in FAILED:  # only what fails makes a page fail
                assert state in FAILED or event in FAILS
            if state is State.BAD and after is not state:  # only the spider deals with that
                assert event in {Event.REACHED, Event.YIELDED, Event.FAILED, Event.KEPT}


def test_what_waits_for_a_page_fails_with_it_if_that_is_fetched_again():
    for is_fetched_again in True, False:
        parent, page = Page(), Page()
        hold_up(parent, page)
        page.note(Event.FAILED, Reason("503"))
        assert page.end(with_waiters=is_fetched_again) == [page]
        assert parent.end() == [parent]
        assert parent.has_failed is is_fetched_again


@settings(stateful_step_count=25)
class PageMachine(RuleBasedStateMachine):
    """Pages, each with a plain list of what has happened to it, and those for which it waits."""

    def __init__(self):
        super().__init__()
        self.pages, self.happened, self.waits_for = [], {}, {}
        self.working = []  # those that the engine has, or whose requests are being judged
        self.ended = []
        self.take()

    @rule()
    def take(self):
        self.add(Page("its row"))

    def add(self, page, parents=()):
        self.pages.append(page)
        self.working.append(page)
        self.happened[page], self.waits_for[page] = [], []
        for parent in parents:
            self.waits_for[parent].append(page)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def lead_to_one_in_memory(self, data):
        parents = data.draw(st.lists(st.sampled_from(self.working), unique=True, max_size=3))
        self.add(Page(None, None, parents), parents)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def have_a_request_judged(self, data):
        page = data.draw(st.sampled_from(self.working))
        page.hold()
        self.working.append(page)

    @rule(data=st.data())
    def redirect(self, data):
        """Even to a page that has ended, and in a circle."""
        page, until = (data.draw(st.sampled_from(self.pages)) for _ in range(2))
        waits = page not in self.ended and until not in self.ended and not self.leads(until, page)
        hold_up(page, until)
        if waits:
            self.waits_for[page].append(until)
        elif until in self.ended and until.state in FAILED:
            self.happened[page].append((Event.FAILED, until.reason))

    def leads(self, page, to):
        """Return whether a page waits for another one, perhaps through others."""
        return page is to or any(self.leads(each, to) for each in self.waits_for[page])

    @rule(data=st.data(), event=st.sampled_from(Event))
    def happen(self, data, event):
        """Even to what has ended: that waits for its items, and another page may fail with it."""
        page = data.draw(st.sampled_from(self.pages))
        reason = Reason(str(len(self.happened[page]))) if event in FAILS else None
        page.note(event, reason)
        self.happened[page].append((event, reason))

    @precondition(lambda self: self.working)
    @rule(data=st.data(), with_waiters=st.booleans())
    def end(self, data, with_waiters):
        page = data.draw(st.sampled_from(self.working))
        self.working.remove(page)
        ended = page.end(with_waiters=with_waiters)
        for each in ended:
            assert each not in self.ended  # each page ends once
            assert each not in self.working  # and not before the engine is through with it
            assert not self.was(each, Event.KEPT)
            for other in self.waits_for[each]:  # nor before what it waits for
                assert other in self.ended or other in ended
                if with_waiters and other in ended and other.state in FAILED:
                    assert each.state is State.FAILED  # only it can yield the other one again
        self.ended += ended

    def was(self, page, event):
        return any(happened is event for happened, _ in self.happened[page])

    @invariant()
    def all_that_could_end_has_ended(self):
        for page in self.pages:
            waits = page in self.working or page.state is State.KEPT
            if not waits and all(each in self.ended for each in self.waits_for[page]):
                assert page in self.ended

    @invariant()
    def a_page_that_has_failed_for_good_is_not_done(self):
        for page, happened in self.happened.items():
            if self.was(page, Event.FAILED):
                assert page.state in (State.FAILED, State.KEPT)
            assert (page.state in FAILED) == (page.reason is not None) or page.state is State.KEPT
            if not self.waits_for[page] and not any(event in FAILS for event, _ in happened):
                assert page.state not in FAILED


TestPages = PageMachine.TestCase
