"""All that a filter consists of, wherever it lives."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from scrapy_bloom.core.growth import SHARE
from scrapy_bloom.core.info import FilterInfo, filter_info
from scrapy_bloom.core.numbers import AnyState, NumbersState
from scrapy_bloom.core.state import FilterState
from scrapy_bloom.errors import SettingError
from scrapy_bloom.storage import numbers_file
from scrapy_bloom.storage.numbers_file import NumbersFile
from scrapy_bloom.storage.snapshot import Identity, Snapshot, chunks_of

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
        queue: as in its file; empty outside of a job.
        journaled: whether the requests of its job are in ``requests.sqlite``.
        waiting: how many requests wait where it lives, whose pages it calls seen all the same; None
            if that is not known.
        beside: Scrapy's own queue where it lives, if requests wait there; else empty.
        lost: keys of parts that Redis has lost.
        counted: how many items Redis counts, where that is not told by its slices; else None.
    """

    identity: Identity
    error_rate: float
    shards: Sequence[AnyState]
    let_through: Collection[bytes] = field(default=frozenset(), repr=False)
    generation: int = 0
    written_by: str = ""
    queue: str = ""
    journaled: bool = False
    waiting: int | None = None
    beside: str = ""
    lost: Sequence[str] = ()
    counted: int | None = None

    @classmethod
    def of_numbers(cls, file: NumbersFile) -> Contents:
        """Return the contents of a file with a filter of the layout ``sets``."""
        return cls(file.identity, file.error_rate, file.shards, written_by=file.written_by)

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
            snapshot.journaled,
        )

    def bits(self) -> Sequence[FilterState]:
        """Return its shards, if they are made of bits.

        :raises SettingError: if they are made of numbers.
        """
        shards = [state for state in self.shards if isinstance(state, FilterState)]
        if len(shards) < len(self.shards):
            raise SettingError(
                "this filter has the layout 'sets': it keeps a number for each page, from which"
                " the fingerprint cannot be recovered to set its bits elsewhere. It can be"
                " copied to a file and to Redis. To fill a filter of bits, add the URLs."
            )
        return shards

    def chunks(self, before: Contents | None) -> Iterator[bytes]:
        """Yield the bytes of a file with the filter; `before` is as for :meth:`snapshot`."""
        identity = replace(self.identity, canonical=sorted_keys(self.identity.canonical))
        numbers = [state for state in self.shards if isinstance(state, NumbersState)]
        if len(numbers) == len(self.shards):
            return numbers_file.chunks_of(NumbersFile(identity, self.error_rate, numbers))
        return chunks_of(self.snapshot(before))

    def snapshot(self, before: Contents | None) -> Snapshot:
        """Return what is written to a file.

        :param before: what the file has now. Generation and queue stay what they are: with others,
            a run that was killed would count as one that has stopped cleanly.
        """
        identity = replace(self.identity, canonical=sorted_keys(self.identity.canonical))
        first, *others = self.bits()
        snapshot = Snapshot(identity, 0, first, self.let_through, others=others)
        if before is None:
            return snapshot
        return replace(
            snapshot,
            generation=before.generation,
            queue=before.queue,
            journaled=before.journaled,
        )

    @property
    def items(self) -> int:
        """How many items were added."""
        return sum(state.items for state in self.shards)

    @property
    def bytes(self) -> int:
        """Bytes of its bits, of those blocks that have any; or of its numbers."""
        return sum(state.memory for state in self.shards)

    def live(self, now: float) -> Contents:
        """Return it without the generations of a window that are over."""
        return replace(self, shards=[state.live(now) for state in self.shards])

    def info(self) -> FilterInfo:
        """Return its state, from a count of all that it holds."""
        info = filter_info(
            [state.count() for state in self.shards],
            error_rate=self.error_rate,
            memory=self.bytes,
        )
        window = self.shards[0].window
        if window is None:
            return info
        return info.dated(window, [one.since or 0 for state in self.shards for one in state.slices])


def error_rate_of(state: FilterState) -> float:
    """Return the bound for the total error rate that a filter's first slice was made for."""
    if state.error_rate is not None:
        return state.error_rate
    return float(f"{state.slices[0].spec.error_rate / SHARE:.{_DIGITS}g}")


def sorted_keys(canonical: Mapping[str, object]) -> Mapping[str, object]:
    """Return a record with its keys in order, so that the same filter gives the same file."""
    ordered: Mapping[str, object] = json.loads(json.dumps(canonical, sort_keys=True))
    return ordered
