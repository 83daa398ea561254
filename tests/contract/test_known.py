"""What a worker knows without asking: most of what it was told, and nothing else."""

import random

import pytest
from support.contract import fingerprints

from scrapy_bloom.redis.known import Known
from scrapy_bloom.redis.worker import KNOWN


@pytest.mark.parametrize(("links", "share"), [(100_000, 0.95), (200_000, 0.9), (500_000, 0.7)])
def test_more_links_than_there_is_room_for_cost_only_their_share(links, share):
    """A set that was emptied at 100,000 answered 28 % of 200,000 links, and 10 % of 500,000."""
    chance, known = random.Random(links), Known(KNOWN)
    known.update(range_of(links))
    hits, marks = 0, range_of(links)
    for _ in range(20):
        page = chance.choices(marks, k=500)
        new = [mark for mark in page if mark not in known]
        known.update(new)
        hits += len(page) - len(new)
    assert hits / 10_000 > share


def range_of(count):
    return [number.to_bytes(20, "big") for number in range(count)]


@pytest.mark.parametrize("size", [1, 19, 20, 21, 300])
def test_nothing_else_is_known_and_nothing_once_it_is_cleared(size):
    known = Known(1_000)
    marks = [*dict.fromkeys((mark * 15)[:size] for mark in [bytes(20), *fingerprints(50)])]
    for times in range(1_200):  # more than there are places
        assert not [mark for mark in marks if mark in known], times
        for mark in marks:
            assert mark not in known
            known.update([mark])
            assert mark in known or not any(mark)
        known.clear()


def test_a_worker_that_is_to_know_nothing_knows_nothing():
    known, marks = Known(0), fingerprints(9)
    known.update(marks)
    assert not [mark for mark in marks if mark in known]
