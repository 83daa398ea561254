"""What every filter does, as one suite: inherit it and say how one is made. And what it costs."""

import itertools
import sys
from hashlib import sha1

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_bloom.errors import SettingError
from support.internals import secret_of


def share_of(most):
    """Return how many examples are tried, if it were `most` where a hundred are usual."""
    return max(1, most * settings().max_examples // 100)


def fingerprints(count, tag="a"):
    return [sha1(f"{tag} {i}".encode()).digest() for i in range(count)]


def lines_of(modules, function, *arguments):
    """Return how many lines of some modules a call executes."""
    files, count = {module.__file__ for module in modules}, 0

    def trace(frame, event, _):
        nonlocal count
        count += event == "line" and frame.f_code.co_filename in files
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return count


class FilterContract:
    """Subclasses give a fixture `make`: called with capacity and error rate, it makes a filter.

    Attributes:
        SMALL: capacity of the filters that are to grow far.
        EXAMPLES: how many of each property are tried.
    """

    SMALL = 1000
    EXAMPLES = 25

    def test_the_first_add_is_new_and_a_check_changes_nothing(self, make):
        seen = make()
        assert b"a" * 20 not in seen
        assert seen.contains_many([b"a" * 20] * 2) == [False, False]
        assert seen.add(b"a" * 20) is False
        assert seen.add(b"a" * 20) is True
        assert seen.add(b"b" * 20) is False
        assert b"a" * 20 in seen
        assert seen.info().items == 2
        seen.close()
        seen.close()  # is no matter

    def test_a_filter_grows_and_forgets_nothing(self, make):
        capacity = self.SMALL
        seen = make(capacity=capacity, error_rate=1e-6)
        known = fingerprints(20 * capacity)
        for start in range(0, len(known), capacity):
            seen.add_many(known[start : start + capacity])
            assert all(seen.contains_many(known[: start + capacity : 37]))
        assert all(seen.contains_many(known))
        info = seen.info()
        assert info.slices > 2
        assert len(known) - 1 <= info.items <= len(known)  # one in a million is lost
        assert info.items <= info.capacity <= 4 * len(known)

    def test_the_error_rate_holds_far_over_capacity(self, make):
        many = 30 * self.SMALL
        seen = make(capacity=self.SMALL, error_rate=0.01)
        lost = sum(seen.add_many(fingerprints(many)))
        assert lost <= many / 100
        wrong = sum(seen.contains_many(fingerprints(many, "never added")))
        assert wrong <= many / 100

    def test_info_counts_what_was_added(self, make):
        seen = make(capacity=10_000, error_rate=1e-4)
        empty = seen.info()
        assert (empty.items, empty.fill_ratio, empty.estimated_fp_rate) == (0, 0, 0)
        assert (empty.expected_lost, empty.slices) == (0, 1)
        assert (empty.capacity, empty.error_rate) == (10_000, 1e-4)
        seen.add_many(fingerprints(10_000))
        full = seen.info()
        assert 9_997 <= full.items <= 10_000  # 0.005 of them are lost, as an expectation
        assert 0.2 < full.fill_ratio < 0.8
        assert 0 < full.estimated_fp_rate < 1e-4
        assert 0 < full.expected_lost < 10_000 * 1e-4
        assert full.bytes >= empty.bytes  # in Redis a slice has all its keys before it is used

    def test_a_cleared_filter_is_as_a_new_one(self, make):
        seen = make(capacity=100, error_rate=1e-9)
        known = fingerprints(1000)
        seen.add_many(known)
        assert [seen.forget(known[0]) for _ in range(2)] == [True, False]
        assert seen.clear()
        assert (seen.info().items, seen.info().slices) == (0, 1)
        assert not any(seen.contains_many(known))
        assert seen.add_many(known) == [False] * 1000
        assert seen.add_many(known) == [True] * 1000

    def test_a_page_with_an_age_is_new_when_it_is_due_or_forgotten(self, make):
        seen = make(capacity=10, error_rate=1e-9)
        assert not seen.add_aged(b"list", 60)
        seen.add_many(fingerprints(100))
        assert seen.add_aged(b"list", 60)
        assert not seen.add_aged(b"list", 0)
        assert seen.forget(b"list")
        assert not seen.add_aged(b"list", 60)

    def test_a_filter_adds_and_forgets_as_a_set_does(self, make):
        everything = [bytes(length) for length in (*range(60), 1000)]  # no two are as long
        items = st.lists(st.sampled_from(everything), max_size=40)

        @settings(deadline=None, max_examples=share_of(self.EXAMPLES))
        @given(steps=st.lists(st.tuples(st.booleans(), items), max_size=12))
        def check(steps):
            seen, model = make(capacity=10, error_rate=1e-9), set()
            for forgets, batch in steps:
                expected = []
                for item in batch:
                    expected.append(item in model)
                    (model.discard if forgets else model.add)(item)
                answers = (seen.forget_many if forgets else seen.add_many)(iter(batch))
                assert answers == expected
                assert seen.info().items == len(model)
                assert seen.contains_many(everything) == [one in model for one in everything]
            assert {one for one in everything if one in seen} == model

        check()

    def test_two_filters_have_keys_of_their_own(self, make):
        one, two = make(), make()
        known = fingerprints(100)
        one.add_many(known)
        two.add_many(known)
        assert secret_of(one) != secret_of(two)

    def test_an_impossible_size_is_refused_by_name(self, make):
        for capacity in (0, 1e30, float("nan"), 1.5, "", "10MB"):
            with pytest.raises(SettingError, match=r"capacity = .*from 1 to 10,000,000,000"):
                make(capacity=capacity)
        for error_rate in (0, 1, "abc", float("nan"), 1e-16):
            with pytest.raises(SettingError, match=r"error_rate = .*from 1e-15 to below 1"):
                make(error_rate=error_rate)

    def test_the_ends_of_the_ranges_work(self, make):
        known = fingerprints(50)
        for capacity, error_rate in itertools.product((1, 1000), (0.999, 1e-15)):
            seen = make(capacity=capacity, error_rate=error_rate)
            seen.add_many(known)
            assert all(seen.contains_many(known))
