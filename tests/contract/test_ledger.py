"""A page is reported after everything that was asked before it is answered, and then at once."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scrapy_bloom.crawl.ledger import Ledger


class LedgerMachine(RuleBasedStateMachine):
    """Compares a ledger with a list of all that happened: questions, and pages that are done.

    A page is its place in that list.
    """

    def __init__(self):
        super().__init__()
        self.ledger = Ledger()
        self.places = {}  # of questions without an answer, by number
        self.happened = 0
        self.pages = []  # not reported
        self.began = None  # a report: what `due` said, and which pages it may take

    @rule()
    def ask(self):
        number = self.ledger.ask()
        assert number not in self.places
        self.places[number] = self.happened
        self.happened += 1

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def answer(self, data):
        number = data.draw(st.sampled_from(sorted(self.places)))
        self.ledger.answer(number)
        del self.places[number]

    @rule(count=st.integers(0, 3))
    def end(self, count):
        pages = range(self.happened, self.happened + count)
        self.ledger.add(pages)
        self.pages += pages
        self.happened += count

    @precondition(lambda self: self.began is None)
    @rule()
    def begin_report(self):
        """From now on their items are written out, and more may happen meanwhile."""
        oldest = min(self.places.values(), default=self.happened)
        due = [page for page in self.pages if page < oldest]
        until = self.ledger.due()
        assert (until is not None) == bool(due)
        if due:
            self.began = until, due

    @precondition(lambda self: self.began is not None)
    @rule()
    def report(self):
        until, due = self.began
        assert list(self.ledger.take(until)) == due
        self.pages = self.pages[len(due) :]
        self.began = None

    @precondition(lambda self: self.began is not None)
    @rule()
    def fail(self):
        """The items could not be written."""
        self.began = None

    @invariant()
    def counts_are_right(self):
        assert len(self.ledger) == len(self.pages)


TestLedger = LedgerMachine.TestCase
