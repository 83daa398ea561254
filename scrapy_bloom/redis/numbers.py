"""Whole filters of the layout ``sets`` on their way out of Redis and into it, bucket by bucket."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import redis
from bitarray import bitarray
from bitarray.util import zeros

from scrapy_bloom.core.buckets import MOST_NUMBERS
from scrapy_bloom.core.numbers import NumbersSlice, NumbersState, pack
from scrapy_bloom.errors import StateError
from scrapy_bloom.redis import scripts
from scrapy_bloom.redis.connection import TOO_FEW_NUMBERS
from scrapy_bloom.redis.deadline import Within
from scrapy_bloom.redis.header import Header, Plan
from scrapy_bloom.redis.place import Place
from scrapy_bloom.redis.transfer import LEFTOVER, Fetched, Install, Told

_CHUNK: Final = 1024  # buckets of which one field of the header tells whether they were made
_AT_ONCE: Final = 32  # buckets in one call: about 12,000 numbers, some milliseconds of the server
_NAMES: Final = 500  # keys in one call that does not look at what is in them
_ONE: Final = bitarray("1")


def fetch_numbers(
    place: Place,
    read: Callable[[], tuple[Header, Mapping[bytes, bytes]]],
    run: Callable[..., Sequence[bytes]],
    told: Told,
) -> Fetched:
    """Read a shard, also while workers add to it: every mark that was there at the start is in it.

    :param read: returns its header now, and the fields of that.
    :param run: runs a script on it.
    :raises BackendError: if the server cannot be used.
    :raises StateError: if the filter goes away meanwhile, or a bucket has something else in it.
    """
    header, fields = read()
    window = header.plan.window or None
    slices, lost = [], []
    for spec in header.slices:
        index = spec.number
        buckets: dict[int, array[int]] = {}
        made = _made_in(fields, index)
        while some := list(islice(made, _AT_ONCE)):
            texts = run(scripts.NUMBERS, index, *some)
            for bucket, text in zip(some, texts, strict=True):
                name = f"{index}.{bucket}"
                if not text:
                    lost.append(name)
                    continue
                try:
                    numbers = pack(map(int, text.split()), spec)
                except (OverflowError, ValueError) as error:
                    raise StateError(
                        f"{place.name}: found something else than numbers of 32 or 64 bits in"
                        f" {place.prefix(header.epoch)}{name}, expected a part of the filter."
                        f" Another program has written there."
                    ) from error
                if numbers:
                    buckets[bucket] = numbers
            told(sum(map(len, texts)))
        slices.append(
            NumbersSlice(spec.spec, buckets, (spec.since or time.time()) if window else None)
        )
    return Fetched(header, NumbersState(header.secret, header.plan.digests, slices, window), lost)


class NumbersInstall(Install):
    """Puts a shard of the layout ``sets`` into Redis.

    Arguments are those of :class:`Install`.
    """

    at_once = _NAMES

    def __init__(self, place: Place, plan: Plan, state: NumbersState, spider: str) -> None:
        *older, newest = state.slices
        filled = min(newest.items, newest.spec.capacity)
        super().__init__(place, plan, state, filled, spider)
        self._slices = state.slices
        # Without dates the header counts older slices as full. What was taken out of them is told
        # beside that.
        listed = sum(one.items if plan.window else one.spec.capacity for one in older) + filled
        forgotten = max(0, listed - state.items)
        if forgotten:
            self.fields["forgotten"] = str(forgotten).encode()
        for index, slice_ in enumerate(state.slices):
            self.fields |= _made_fields(index, slice_)

    @property
    def size(self) -> int:
        """How many bytes :meth:`upload` sends, about."""
        return sum(map(_text_bytes, (one for _, one in self._buckets())))

    def keys(self) -> Iterator[str]:
        """Yield the names of its buckets."""
        return (f"{self.prefix}{name}" for name, _ in self._buckets())

    def upload(self, told: Told) -> None:
        """Send the buckets."""
        buckets = self._buckets()
        while some := list(islice(buckets, _AT_ONCE)):
            commands: list[tuple[Any, ...]] = []
            for name, numbers in some:
                key = f"{self.prefix}{name}"
                commands += [("SADD", key, 0, *numbers), ("EXPIRE", key, LEFTOVER)]
            name, numbers = max(some, key=lambda one: len(one[1]))
            commands.append(("OBJECT ENCODING", f"{self.prefix}{name}"))
            encoding = self._together(commands)[-1]
            if encoding != b"intset" and len(numbers) < MOST_NUMBERS:
                with self.place.explained():
                    raise redis.ResponseError(TOO_FEW_NUMBERS)
            told(sum(_text_bytes(numbers) for _, numbers in some))

    def finish(self) -> None:
        """Make the filter: from now on it is there.

        Its buckets may be too many to be looked at in one call, so they are made to stay before. If
        this process is killed in between, they are leftovers.
        """
        keys = self.keys()
        while some := list(islice(keys, _NAMES)):
            stay = self._together([("PERSIST", key) for key in some])
            for key, stays in zip(some, stay, strict=True):
                if not stays:
                    raise self.lost(key)
        super().finish()

    def _buckets(self) -> Iterator[tuple[str, array[int]]]:
        """Yield the end of each key, and its numbers."""
        for index, slice_ in enumerate(self._slices):
            for bucket, numbers in slice_.buckets.items():
                yield f"{index}.{bucket}", numbers

    def _together(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        with self.place.explained(), Within(2 * self.place.timeout):
            pipeline = self.place.client.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            answers: list[Any] = pipeline.execute()
        return answers


def _text_bytes(numbers: array[int]) -> int:
    """Return about how many bytes the numbers of a bucket take on the wire."""
    return len(numbers) * (numbers.itemsize * 5 // 2)


def _made_in(fields: Mapping[bytes, bytes], index: int) -> Iterator[int]:
    """Yield the numbers of the buckets of a slice that were made."""
    start = b"m:%d." % index
    chunks = sorted(
        (int(name[len(start) :]), bits) for name, bits in fields.items() if name.startswith(start)
    )
    for chunk, bits in chunks:
        made = bitarray(endian="little")
        made.frombytes(bits)
        yield from (chunk * _CHUNK + bit for bit in made.search(_ONE))


def _made_fields(index: int, slice_: NumbersSlice) -> dict[str, bytes]:
    """Return the fields of the header that tell which buckets of a slice were made."""
    chunks: dict[int, bitarray] = {}
    for bucket in slice_.buckets:
        chunk, bit = divmod(bucket, _CHUNK)
        if chunk not in chunks:
            chunks[chunk] = zeros(_CHUNK, "little")
        chunks[chunk][bit] = 1
    return {f"m:{index}.{chunk}": bits.tobytes() for chunk, bits in chunks.items()}
