"""Whether a crawl and the requests beside its filter go together, before the crawl joins."""

from __future__ import annotations

from collections.abc import Sequence

from scrapy_bloom.errors import StateError
from scrapy_bloom.options import REDIS_KEY
from scrapy_bloom.redis.deadline import Within
from scrapy_bloom.redis.place import Place
from scrapy_bloom.redis.queue.reader import QueueReader
from scrapy_bloom.redis.shard import START_OVER


def count_unmarked(places: Sequence[Place]) -> int:
    """Return how many requests wait where no filter is.

    Workers make the filter before they queue anything. So where requests were found and, after
    that, no filter, it is gone.

    :param places: of all shards.
    :raises BackendError: if the server cannot be used.
    """
    held = [(place, QueueReader(place).held()) for place in places]
    return sum(count for place, count in held if count and not _exists(place))


def check_whole(places: Sequence[Place]) -> None:
    """Refuse a crawl of which some shards have vanished, requests and marks.

    What the other shards count as done may have led to these requests.

    :param places: of all shards.
    :raises BackendError: if the server cannot be used.
    :raises StateError: if some have.
    """
    gone = [place for place in places if not (_exists(place) or QueueReader(place).exists())]
    if gone and any(_is_queued(place) for place in places):
        raise StateError(
            f"{gone[0].name}: this shard of the crawl has vanished, and others have not. Pages that"
            f" led to its requests may count as done. {START_OVER}"
        )


def check_empty(places: Sequence[Place]) -> None:
    """Refuse a crawl that would not fetch the requests beside the filter.

    :param places: of all shards.
    :raises BackendError: if the server cannot be used.
    :raises StateError: if requests wait, or were taken by workers.
    """
    if count := sum(QueueReader(place).held() for place in places):
        first = places[0]
        raise StateError(
            f"{first.name}: found {count:,} requests that SCHEDULER = 'scrapy_bloom.Scheduler' has"
            f" left, expected none: this crawl would not fetch them, and the filter calls their"
            f" pages seen. Nothing was changed. To go on with them, set that SCHEDULER again. To"
            f" begin anew, run 'scrapy bloom delete --spider NAME', or set another"
            f" {first.words(REDIS_KEY)}."
        )


def _is_queued(place: Place) -> bool:
    """Return whether requests were ever queued in a shard."""
    with place.explained(), Within(2 * place.timeout):
        return bool(place.client.hexists(place.key, "queued"))


def _exists(place: Place) -> bool:
    with place.explained(), Within(2 * place.timeout):
        return bool(place.client.exists(place.key))
