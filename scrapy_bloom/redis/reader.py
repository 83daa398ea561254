"""Reads a filter in Redis that is there already. Nothing is written to the server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from scrapy_bloom.core.info import FilterInfo
from scrapy_bloom.core.numbers import NumbersState
from scrapy_bloom.errors import StateError
from scrapy_bloom.options import REDIS_KEY, REDIS_TIMEOUT, in_arguments
from scrapy_bloom.redis import scripts
from scrapy_bloom.redis.connection import Target
from scrapy_bloom.redis.deadline import Within
from scrapy_bloom.redis.header import Header, check_plan, read_header
from scrapy_bloom.redis.inspection import describe
from scrapy_bloom.redis.link import ScriptRunner
from scrapy_bloom.redis.numbers import fetch_numbers
from scrapy_bloom.redis.place import Place
from scrapy_bloom.redis.queue.reader import QueueReader
from scrapy_bloom.redis.sharding import ask_each, picker, shard_key
from scrapy_bloom.redis.transfer import Fetched, Told, fetch_bits, made_in, segments_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from scrapy_bloom.options import Words

_TEXT: Final = 11  # bytes of a number of 32 bits, as text
_CALLS: Final = 10  # whose time it may take to read the list of what is new once more


@dataclass(frozen=True)
class Worker:
    """A worker that is registered in a filter.

    Attributes:
        id: its host name, process id and a random number, with colons between them.
        alive: whether its lease has not run out.
    """

    id: str
    alive: bool


class RedisReader:
    """Opens a filter in Redis for reading only: looks fingerprints up, and lists its workers.

    It registers no worker, makes no key and changes none, needs no fingerprinter, and does not show
    the filter's secret. The server may be a replica.

    >>> with RedisReader.from_url("redis://localhost", key="site:bloom") as seen:  # doctest: +SKIP
    ...     b"one" in seen
    True

    :param target: the server.
    :param key: the key of the filter.
    :param timeout: most seconds that Redis may hold up one call.
    :param words: names an option in messages.
    :raises BackendError: if the server cannot be used, here and in every method.
    :raises StateError: if there is no filter under the key, or one that cannot be read; in every
        method, if it has gone since.

    Attributes:
        key: the key of the filter.
        error_rate: bound for the share of new items that are called seen, in total.
        digests: whether fingerprints of 20 bytes are taken as SHA-1 digests.
        fingerprinter: what makes the fingerprints; empty if the makers of the filter did not say.
        canonical: by which rules URLs were rewritten before, as JSON.
    """

    def __init__(
        self,
        target: Target,
        *,
        key: str,
        timeout: float = REDIS_TIMEOUT.default,
        words: Words = in_arguments,
    ) -> None:
        self.key = REDIS_KEY.read(words(REDIS_KEY), key)
        timeout = REDIS_TIMEOUT.read(words(REDIS_TIMEOUT), timeout)
        half = timeout / 2  # every call may be made twice
        self._client = target.connect(half)
        try:
            self._shards = find_shards(
                Place(self._client, target.where(), self.key, half, words, reading=True)
            )
        except BaseException:
            self._client.close()
            raise
        self._shard = picker(self._shards)
        plan = self._shards[0].header.plan
        self.error_rate = plan.error_rate
        self.digests = plan.digests
        self.fingerprinter = plan.fingerprinter
        self.canonical = plan.canonical

    @classmethod
    def from_url(cls, url: str, *, key: str, timeout: float = REDIS_TIMEOUT.default) -> Self:
        """Open the filter under a key of the server that the URL names.

        :param url: as for :meth:`RedisFilter.from_url`.
        """
        return cls(Target(url), key=key, timeout=timeout)

    @property
    def shards(self) -> int:
        """How many shards the filter is spread over."""
        return len(self._shards)

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether the fingerprint was added."""
        return self.contains_many([fingerprint])[0]

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added.

        One round trip for each shard and each 500 fingerprints.
        """
        return ask_each(self._shard, list(fingerprints), ShardReader.contains)

    def info(self) -> FilterInfo:
        """Return the state of the filter now, from a sample of its blocks."""
        found = [(shard.place, shard.read(), shard.header.plan) for shard in self._shards]
        return describe(found, self.error_rate)

    def workers(self) -> list[Worker]:
        """Return the workers that are registered in the filter, in the order of their ids."""
        return self._shards[0].workers()

    def spider(self) -> str:
        """Return the name of the spider whose marks these are; empty if it is not known."""
        return self._shards[0].read_with_fields()[1].get(b"spider", b"").decode()

    def made_bytes(self) -> int:
        """Return how many bytes :meth:`fetch` reads, about."""
        return sum(shard.made_bytes() for shard in self._shards)

    def fetch(self, told: Told = int) -> list[Fetched]:
        """Read all shards, also while workers add to them.

        :param told: called with the number of bytes of each segment that was read.
        """
        return [shard.fetch(told) for shard in self._shards]

    def forgotten(self) -> frozenset[bytes]:
        """Return the fingerprints that are new once more, though their bits are set."""
        return frozenset[bytes]().union(*(shard.forgotten() for shard in self._shards))

    def queues(self) -> list[QueueReader]:
        """Return what reads the requests beside each of its shards; there may be none."""
        return [QueueReader(shard.place) for shard in self._shards]

    def parts(self) -> list[ShardReader]:
        """Return its shards, to be looked at one by one."""
        return list(self._shards)

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ShardReader:
    """One shard of the filter, found.

    :param place: where it is.

    Attributes:
        header: its header, as it was found.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.header = read_header(place, self._fields())
        self.place = replace(place, commands=self.header.layout.commands)
        self._runner = ScriptRunner(self.place)
        self._prefix = place.prefix(self.header.epoch)
        header = self.header
        self._hash = header.layout.make_hash(header.secret, digests=header.plan.digests)

    def read(self) -> Header:
        """Return the header as it is now."""
        return self.read_with_fields()[0]

    def read_with_fields(self) -> tuple[Header, dict[bytes, bytes]]:
        """Return the header as it is now, without what is over, and all of its fields."""
        fields = self._fields()
        header = read_header(self.place, fields)
        if header.signature != self.header.signature:
            raise self._gone()
        if header.plan.window:
            with self.place.explained():
                header = header.live(self._runner.now())
        return header, fields

    def fetch(self, told: Told) -> Fetched:
        """Return all of the shard, see :func:`transfer.fetch_bits`."""
        if self.header.plan.layout == NumbersState.layout:
            return fetch_numbers(self.place, self.read_with_fields, self._run, told)
        return fetch_bits(self.place, self.read_with_fields, told)

    def contains(self, fingerprints: list[bytes]) -> list[bool]:
        """Return which fingerprints are there."""
        verdicts: list[bool] = []
        header = self.header
        script = scripts.ask(header.layout, header.hashes, dated=header.dated)
        for start in range(0, len(fingerprints), scripts.BATCH):
            batch = fingerprints[start : start + scripts.BATCH]
            digits = self._run(script, b"".join(map(self._hash, batch)))[0]
            verdicts += scripts.read_verdicts(digits)
        return verdicts

    def forgotten(self) -> list[bytes]:
        """Return the fingerprints that are on the list of those that are new once more."""
        if not self.read().again:
            return []
        with self.place.explained(), Within(_CALLS * self.place.timeout):
            listed: dict[bytes, bytes] = self.place.client.hgetall(f"{self._prefix}again")
        return list(listed.values())

    def made_bytes(self) -> int:
        """Return how many bytes :meth:`fetch` reads, about."""
        header, fields = self.read_with_fields()
        if header.plan.layout == NumbersState.layout:
            return header.items * _TEXT
        made = made_in(fields)
        return sum(one.size for one in segments_of(header.slices) if one.name in made)

    def workers(self) -> list[Worker]:
        """Return who is registered."""
        alive = set(self._run(scripts.LIVE, "")[::2])
        ids = [name[2:] for name in self._fields() if name.startswith(b"w:")]
        return [Worker(name.decode(errors="replace"), name in alive) for name in sorted(ids)]

    def _run(self, script: scripts.Script, *arguments: object) -> list[bytes]:
        with self.place.explained():
            answer: list[bytes] = self._runner.retry_once(
                script, self._prefix, self.header.signature, *arguments
            )
        if answer[0] != b"ok":
            raise self._gone()
        return answer[1:]

    def _gone(self) -> StateError:
        return StateError(
            f"{self.place.name}: the filter that was opened is gone, or another one is in its"
            f" place. Open it again."
        )

    def _fields(self) -> dict[bytes, bytes]:
        place = self.place
        with place.explained(), Within(2 * place.timeout):
            kind = place.client.type(place.key)
            fields: dict[bytes, bytes] = place.client.hgetall(place.key) if kind == b"hash" else {}
        if fields and b"clearing" not in fields:
            return fields
        found, way = f"a {kind.decode()}", place.other_key
        if kind in (b"none", b"hash"):
            found = "nothing"
            its_key = place.words(REDIS_KEY)
            way = f"It is there once a crawl has begun. If one has, give its {its_key}."
        raise StateError(f"{place.name}: found {found}, expected a filter. {way}")


def find_shards(place: Place) -> list[ShardReader]:
    """Find all shards of a filter.

    :param place: where the first one is.
    :raises BackendError: if the server cannot be used.
    :raises StateError: if there is no filter, or one that cannot be read.
    """
    first = ShardReader(place)
    plan = first.header.plan
    if plan.shard:
        raise StateError(
            f"{place.name}: found shard {plan.shard} of a filter, which has the key"
            f" {place.key.rpartition(':')[0]}. Give that as {place.words(REDIS_KEY)}."
        )
    shards = [first]
    for number in range(1, plan.shards):
        shard = ShardReader(replace(place, key=shard_key(place.key, number)))
        check_plan(shard.place, shard.header.plan, replace(plan, shard=number))
        shards.append(shard)
    return shards
