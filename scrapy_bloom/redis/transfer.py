"""Whole filters on their way out of Redis and into it.

A filter on its way in has no header until all of it is there, so nobody sees a part of it. Until
then its keys expire by themselves: what a killed process or a lost server leaves is gone after
:data:`LEFTOVER` seconds.

What is here is for the layout ``bitmap``, bit by bit in pieces of 1 MiB, and for all layouts;
`numbers` is for ``sets``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, ClassVar, Final

from bitarray import bitarray

from scrapy_bloom.core.growth import SliceSpec
from scrapy_bloom.core.numbers import AnyState, NumbersSlice
from scrapy_bloom.core.sizing import BLOCK_BYTES
from scrapy_bloom.core.state import EMPTY, FilterState, Slice
from scrapy_bloom.errors import BackendError, StateError
from scrapy_bloom.redis import scripts
from scrapy_bloom.redis.bitmap import SEGMENT_BLOCKS
from scrapy_bloom.redis.connection import FAULTS
from scrapy_bloom.redis.deadline import Within
from scrapy_bloom.redis.header import Header, Plan, StoredSlice, fields_of, read_slices
from scrapy_bloom.redis.layout import layout_of
from scrapy_bloom.redis.link import ScriptRunner
from scrapy_bloom.redis.place import Place

Told = Callable[[int], object]
"""Called with a number of bytes that have gone over the wire."""

LEFTOVER: Final = 6 * 3600
"""Seconds after which the segments of a copy that was never finished expire."""

_PIECE: Final = 128  # blocks in one call: 1 MiB
_AT_ONCE: Final = 8  # segments that are deleted in one call: about a millisecond of the server
_LISTED: Final = 1_000  # fingerprints in one call
_MARK: Final = (
    b"\x80"  # the byte after the last block: its first bit says that the segment is there
)


@dataclass(frozen=True)
class Segment:
    """A segment of a filter.

    Attributes:
        slice_: number of its slice.
        number: its number in the slice.
        blocks: how many blocks it has.
    """

    slice_: int
    number: int
    blocks: int

    @property
    def name(self) -> str:
        """The end of its key."""
        return f"{self.slice_}.{self.number}"

    @property
    def first(self) -> int:
        """Number of its first block in the slice."""
        return self.number * SEGMENT_BLOCKS

    @property
    def size(self) -> int:
        """Bytes of its key."""
        return self.blocks * BLOCK_BYTES + 1


def segments_of(slices: Sequence[SliceSpec]) -> Iterator[Segment]:
    """Yield all segments that slices of this geometry have, made or not."""
    for place, spec in enumerate(slices):
        slice_ = spec.number if isinstance(spec, StoredSlice) else place
        for number, first in enumerate(range(0, spec.blocks, SEGMENT_BLOCKS)):
            yield Segment(slice_, number, min(SEGMENT_BLOCKS, spec.blocks - first))


def made_in(fields: Mapping[bytes, bytes]) -> set[str]:
    """Return the names of the segments that were made, from the fields of a header."""
    return {name[2:].decode() for name in fields if name.startswith(b"m:")}


@dataclass(frozen=True)
class Fetched:
    """A shard, as it was read.

    Attributes:
        header: its header, as it was when all bits had been read.
        state: the filter.
        lost: names of segments that were made and are not there: marks are missing.
    """

    header: Header
    state: AnyState
    lost: Sequence[str]


def fetch_bits(
    place: Place, read: Callable[[], tuple[Header, Mapping[bytes, bytes]]], told: Told
) -> Fetched:
    """Read a shard, also while workers add to it: every mark that was there at the start is in it.

    :param read: returns its header now, and the fields of that.
    :raises BackendError: if the server cannot be used.
    :raises StateError: if the filter goes away meanwhile.
    """
    touched: dict[int, dict[int, bitarray]] = {}
    done: set[str] = set()
    lost: list[str] = []
    while True:
        header, fields = read()
        made = made_in(fields) - done
        if not made:
            break
        for segment in segments_of(header.slices):
            if segment.name in made:
                blocks = _fetch_segment(
                    place, f"{place.prefix(header.epoch)}{segment.name}", segment
                )
                if blocks is None:
                    lost.append(segment.name)
                else:
                    touched.setdefault(segment.slice_, {}).update(blocks)
                told(segment.size)
        done |= made
    items = [*(spec.items for spec in header.slices[:-1]), header.filled]
    window = header.plan.window or None
    slices = [
        Slice.of(
            spec.spec,
            min(count, spec.capacity),
            touched.get(spec.number, {}),
            (spec.since or time.time()) if window else None,
        )
        for spec, count in zip(header.slices, items, strict=True)
    ]
    state = FilterState(
        header.secret,
        header.hashes,
        header.plan.digests,
        slices,
        window=window,
        error_rate=header.plan.error_rate if window else None,
    )
    return Fetched(header, state, lost)


def _fetch_segment(place: Place, key: str, segment: Segment) -> dict[int, bitarray] | None:
    """Return the blocks of a segment that have bits, by their numbers; None if it is not there."""
    found: dict[int, bitarray] = {}
    empty = bytes(BLOCK_BYTES)
    for start in range(0, segment.blocks, _PIECE):
        count = min(_PIECE, segment.blocks - start)
        low = start * BLOCK_BYTES
        with place.explained(), Within(2 * place.timeout):
            data = place.client.getrange(key, low, low + count * BLOCK_BYTES - 1)
        if len(data) < count * BLOCK_BYTES:
            return None
        for number in range(count):
            bits = data[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
            if bits != empty:
                block = found[segment.first + start + number] = bitarray(endian="big")
                block.frombytes(bits)
    return found


def dated_specs_of(state: AnyState) -> list[StoredSlice]:
    """Return the slices of a filter with a window, as a header lists them."""
    slices: Sequence[Slice | NumbersSlice] = state.slices
    return [
        StoredSlice(**asdict(one.spec), number=number, since=one.since or 0.0, items=one.items)
        for number, one in enumerate(slices)
    ]


class Install(ABC):
    """Puts one shard into Redis: first its keys, by :meth:`upload`, then its header.

    :param place: where it goes.
    :param plan: what it is for.
    :param state: the filter.
    :param filled: items in its newest slice.
    :param spider: whose marks it holds; empty if that is not known.
    """

    at_once: ClassVar[int]
    """Keys that are deleted in one call: about a millisecond of the server."""

    def __init__(self, place: Place, plan: Plan, state: AnyState, filled: int, spider: str) -> None:
        self.place = place
        specs: Sequence[SliceSpec] = dated_specs_of(state)
        if not plan.window:
            specs = [slice_.spec for slice_ in state.slices]
        self.fields = fields_of(plan, state.secret, state.hashes, specs, filled=filled)
        if spider:
            self.fields["spider"] = spider.encode()
        self.prefix = place.prefix(self.fields["epoch"].decode())

    @property
    @abstractmethod
    def size(self) -> int:
        """How many bytes :meth:`upload` sends, about."""

    @abstractmethod
    def keys(self) -> Iterator[str]:
        """Yield the names of its keys but the header."""

    @abstractmethod
    def upload(self, told: Told) -> None:
        """Send the keys. They expire unless :meth:`finish` makes them a filter.

        :raises BackendError: if the server cannot be used.
        """

    def finish(self) -> None:
        """Make the filter: from now on it is there.

        :raises BackendError: if the server cannot be used.
        :raises StateError: if something else is there.
        """
        flat = [part for field in self.fields.items() for part in field]
        signature = self.fields["signature"].decode()
        with self.place.explained():
            word, *lost = ScriptRunner(self.place).retry_once(
                scripts.INSTALL, self.prefix, signature, *flat
            )
        if word == b"lost":
            raise self.lost(lost[0].decode())
        if word != b"ok":
            raise StateError(
                f"{self.place.name}: found something that was not there when the copy began."
                f" Nothing was changed. Try again."
            )

    def withdraw(self) -> None:
        """Delete the keys again, as far as that can be done: nobody has seen them."""
        with suppress(BackendError, *FAULTS):
            delete_keys(self.place, self.keys(), at_once=self.at_once)

    def lost(self, key: str) -> BackendError:
        """Return the error that says that the server has lost a key."""
        return BackendError(
            f"{self.place.name}: the server has lost a part of the copy while it was made (key"
            f" {key}). Nothing was changed. Has it enough memory? Its maxmemory-policy must be"
            f" noeviction."
        )


class BitsInstall(Install):
    """Puts a shard of bits into Redis. Its state shares the bits.

    Arguments are those of :class:`Install`, and:

    :param again: fingerprints that are new once more, though their bits are set.
    """

    at_once = _AT_ONCE

    def __init__(
        self,
        place: Place,
        plan: Plan,
        state: FilterState,
        spider: str,
        again: Sequence[bytes] = (),
    ) -> None:
        super().__init__(place, plan, state, state.slices[-1].items, spider)
        self._state = state
        self._again = again
        if again:
            self.fields |= {name: b"%d" % len(again) for name in ("again", "forgotten")}
        segments = segments_of([slice_.spec for slice_ in state.slices])
        self._segments = [segment for segment in segments if self._touched(segment)]
        self.fields |= {f"m:{segment.name}": b"1" for segment in self._segments}

    @property
    def size(self) -> int:
        """How many bytes :meth:`upload` sends, about."""
        return sum(segment.size for segment in self._segments)

    def keys(self) -> Iterator[str]:
        """Yield the names of its segments, and of the list of what is new once more."""
        names = [segment.name for segment in self._segments] + ["again"] * bool(self._again)
        return (
            f"{self.prefix}{name}" for name in [*names, *[self._dates] * bool(self._state.ages)]
        )

    def upload(self, told: Told) -> None:
        """Send the segments, that list, and the dates of pages with a greatest age."""
        make = layout_of(self._state.layout).make_hash(
            self._state.secret, digests=self._state.digests
        )
        self._send("again", ((make(one), one) for one in self._again))
        ages = self._state.ages.items()
        self._send(self._dates, ((make(one), f"{last:.6f}") for one, last in ages))
        for segment in self._segments:
            key = f"{self.prefix}{segment.name}"
            self._call("SETRANGE", key, segment.size - 1, _MARK)
            self._call("EXPIRE", key, LEFTOVER)
            for start, blocks in self._runs(segment):
                data = b"".join(block.tobytes() for block in blocks)
                self._call("SETRANGE", key, (start - segment.first) * BLOCK_BYTES, data)
            told(segment.size)

    def finish(self) -> None:
        """Make the filter.

        The script sees to all keys but the dates. Those are made to stay before.
        """
        key = f"{self.prefix}{self._dates}"
        if self._state.ages and not self._call("PERSIST", key):
            raise self.lost(key)
        super().finish()

    @property
    def _dates(self) -> str:
        """The name of the key with dates: those beside the newest slice."""
        return f"{len(self._state.slices) - 1}.ages"

    def _send(self, name: str, pairs: Iterator[tuple[bytes, bytes | str]]) -> None:
        """Send fields and values of a hash."""
        key = f"{self.prefix}{name}"
        while some := list(islice(pairs, _LISTED)):
            self._call("HSET", key, *(part for pair in some for part in pair))
            self._call("EXPIRE", key, LEFTOVER)

    def _runs(self, segment: Segment) -> Iterator[tuple[int, list[bitarray]]]:
        """Yield the blocks that have bits, as runs of neighbours: first number, blocks."""
        blocks = self._state.slices[segment.slice_].blocks
        run: list[bitarray] = []
        end = segment.first + segment.blocks
        for number in range(segment.first, end + 1):
            block = blocks[number] if number < end else EMPTY
            if block is not EMPTY:
                run.append(block)
            if run and (block is EMPTY or len(run) == _PIECE):
                first = number + (block is not EMPTY) - len(run)
                yield first, run
                run = []

    def _touched(self, segment: Segment) -> bool:
        blocks = self._state.slices[segment.slice_].blocks
        end = segment.first + segment.blocks
        return any(block is not EMPTY for block in blocks[segment.first : end])

    def _call(self, *command: Any) -> Any:
        with self.place.explained(), Within(2 * self.place.timeout):
            return self.place.client.execute_command(*command)


def delete_segments(place: Place, fields: Mapping[bytes, bytes], told: Told = int) -> None:
    """Delete the segments of a filter whose header is gone, some at once.

    :param fields: of that header.
    :raises BackendError: if the server cannot be used.
    """
    prefix = place.prefix(fields[b"epoch"].decode())
    dates = (f"{one.number}.ages" for one in read_slices(fields[b"slices"].decode()))
    names = ("again", *dates, *sorted(made_in(fields)))
    delete_keys(place, [f"{prefix}{name}" for name in names], told)


def delete_keys(
    place: Place, keys: Iterable[str | bytes], told: Told = int, *, at_once: int = _AT_ONCE
) -> None:
    """Delete keys of one slot, some at once, so that the server never stands still for long.

    :param told: called with the number of keys.
    :param at_once: how many in one call.
    :raises BackendError: if the server cannot be used.
    """
    left = iter(keys)
    while some := list(islice(left, at_once)):
        with place.explained(), Within(2 * place.timeout):
            place.client.unlink(*some)
        told(len(some))


def in_use(place: Place) -> StateError:
    """Return the error that refuses to change a filter under a crawl."""
    return StateError(
        f"{place.name}: a crawl uses this filter. Nothing was changed. Wait until its workers have"
        f" stopped; a killed one counts as stopped after some seconds."
    )
