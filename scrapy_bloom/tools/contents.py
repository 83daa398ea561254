"""All that a filter consists of, wherever it lives."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scrapy_bloom.core.growth import SHARE
from scrapy_bloom.core.info import FilterInfo, filter_info
from scrapy_bloom.core.merging import count_slice
from scrapy_bloom.core.sizing import BLOCK_BYTES
from scrapy_bloom.core.state import EMPTY, FilterState
from scrapy_bloom.storage.queue_record import QueueRecord
from scrapy_bloom.storage.snapshot import Identity, Snapshot

_DIGITS: Final = 15  # of an error rate that is divided by the share of the first slice


@dataclass(frozen=True)
class Contents:
    """A filter as a whole: its bits, and what they belong to.

    Attributes:
        identity: spider, fingerprinter and rules; an empty text for what is not known.
        error_rate: bound for the share of new items that are called seen, in total.
        shards: the filter; several for one that is spread over shards in Redis.
        let_through: fingerprints that are to be called new once more, though the filter has them.
        generation: how many clean stops its job has had; 0 outside of one.
        written_by: name and version of the program that wrote its file; empty if there is none.
        queue: Scrapy's queue at the job's last clean stop; None outside of a job.
        waiting: how many requests wait where it lives, whose pages it calls seen all the same; None
            if that is not known.
        beside: Scrapy's own queue where it lives, if requests wait there; else empty.
        lost: keys of parts that Redis has lost.
    """

    identity: Identity
    error_rate: float
    shards: Sequence[FilterState]
    let_through: Collection[bytes] = field(default=frozenset(), repr=False)
    generation: int = 0
    written_by: str = ""
    queue: QueueRecord | None = None
    waiting: int | None = None
    beside: str = ""
    lost: Sequence[str] = ()

    @classmethod
    def of(cls, snapshot: Snapshot) -> Contents:
        """Return the contents of a file."""
        return cls(
            snapshot.identity,
            error_rate_of(snapshot.state),
            snapshot.shards,
            frozenset(snapshot.withdrawn),
            snapshot.generation,
            snapshot.written_by,
            snapshot.queue,
        )

    def snapshot(self, before: Contents | None) -> Snapshot:
        """Return what is written to a file.

        :param before: what the file has now. Generation and queue stay what they are: with others,
            a run that was killed would count as one that has stopped cleanly.
        """
        identity = Identity(
            self.identity.spider, self.identity.fingerprinter, sorted_keys(self.identity.canonical)
        )
        first, *others = self.shards
        generation, queue = (before.generation, before.queue) if before else (0, None)
        return Snapshot(identity, generation, first, self.let_through, queue, others)

    @property
    def items(self) -> int:
        """How many items were added."""
        return sum(state.items for state in self.shards)

    @property
    def bytes(self) -> int:
        """Bytes of its bits, of those blocks that have any."""
        touched = sum(
            block is not EMPTY
            for state in self.shards
            for slice_ in state.slices
            for block in slice_.blocks
        )
        return touched * BLOCK_BYTES

    def info(self) -> FilterInfo:
        """Return its state, from a count of all bits."""
        return filter_info(
            [
                [count_slice(slice_, state.hashes) for slice_ in state.slices]
                for state in self.shards
            ],
            error_rate=self.error_rate,
            memory=self.bytes,
        )


def error_rate_of(state: FilterState) -> float:
    """Return the bound for the total error rate that a filter's first slice was made for."""
    return float(f"{state.slices[0].spec.error_rate / SHARE:.{_DIGITS}g}")


def sorted_keys(canonical: Mapping[str, object]) -> Mapping[str, object]:
    """Return a record with its keys in order, so that the same filter gives the same file."""
    ordered: Mapping[str, object] = json.loads(json.dumps(canonical, sort_keys=True))
    return ordered
