"""Changes a filter in Redis as a whole, from outside of any crawl: installs and deletes it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from scrapy_bloom.core.numbers import AnyState, NumbersState
from scrapy_bloom.errors import BackendError, StateError
from scrapy_bloom.options import REDIS_TIMEOUT, Words, in_arguments
from scrapy_bloom.redis import pace, scripts
from scrapy_bloom.redis.connection import Target, is_cluster
from scrapy_bloom.redis.deadline import Within
from scrapy_bloom.redis.header import PROGRAM, Plan
from scrapy_bloom.redis.link import ScriptRunner
from scrapy_bloom.redis.membership import read_look
from scrapy_bloom.redis.numbers import NumbersInstall
from scrapy_bloom.redis.place import Place
from scrapy_bloom.redis.queue.reader import QueueReader
from scrapy_bloom.redis.reader import ShardReader
from scrapy_bloom.redis.sharding import picker, shard_key
from scrapy_bloom.redis.transfer import (
    BitsInstall,
    Install,
    Told,
    delete_keys,
    delete_segments,
    in_use,
)
from scrapy_bloom.redis.watch import Watch, wait_deserted

_NOBODY: Final = ""  # the worker on whose behalf the others are looked at: none is registered
_GLOB: Final = re.compile(r"([\\*?\[\]^-])")
_MOST_SHARDS: Final = 1024
_SEGMENT: Final = (
    rb"%s(?P<shard>(?::\d+)?)(?::\{%s(?P=shard)\})?:(?P<epoch>[0-9a-f]{16})"
    rb":(?:\d+\.(?:\d+|ages)|again)"
)
_QUEUE: Final = rb"%s(?P<shard>(?::\d+)?)(?::\{%s(?P=shard)\})?:queue:state"


@dataclass(frozen=True)
class Incoming:
    """A filter that is to be put into Redis.

    Attributes:
        shards: its shards, mostly one.
        error_rate: bound for its total error rate.
        fingerprinter: what made its fingerprints; empty if that is not known.
        canonical: by which rules URLs were rewritten before, as JSON.
        spider: whose marks it holds; empty if that is not known.
        again: fingerprints that are new once more, though the filter has them.
    """

    shards: Sequence[AnyState]
    error_rate: float
    fingerprinter: str
    canonical: str
    spider: str
    again: Collection[bytes] = ()

    def plan(self, number: int) -> Plan:
        """Return what one of its shards is for."""
        state = self.shards[number]
        return Plan(
            state.slices[0].spec.capacity,
            self.error_rate,
            state.digests,
            self.fingerprinter,
            number,
            len(self.shards),
            self.canonical,
            state.layout,
            state.window or 0.0,
        )

    def install(self, number: int, place: Place) -> Install:
        """Return what puts one of its shards into a place."""
        state, plan = self.shards[number], self.plan(number)
        if isinstance(state, NumbersState):
            return NumbersInstall(place, plan, state, self.spider)
        pick = picker(range(len(self.shards)))
        again = sorted(one for one in self.again if pick(one) == number)
        return BitsInstall(place, plan, state, self.spider, again)


class Upkeep:
    """Installs and deletes the filter under one key.

    :param target: the server.
    :param key: the key of the filter.
    :param timeout: most seconds that Redis may hold up one call.
    :param words: names an option in messages.
    :raises BackendError: if the server cannot be used, here and in every method.
    """

    def __init__(
        self,
        target: Target,
        *,
        key: str,
        timeout: float = REDIS_TIMEOUT.default,
        words: Words = in_arguments,
    ) -> None:
        self._client = target.connect(timeout / 2)
        self._place = Place(self._client, target.where(), key, timeout / 2, words)
        if is_cluster(self._client):
            self._place.check_slot()

    @property
    def name(self) -> str:
        """Server and key, for messages."""
        return self._place.name

    def kind(self) -> str:
        """Return what Redis calls the kind of value under the key: ``none``, ``hash`` and so on."""
        with self._place.explained(), Within(2 * self._place.timeout):
            kind: bytes = self._client.type(self._place.key)
        return kind.decode()

    def install(self, incoming: Incoming, told: Told = int) -> None:
        """Put a filter under the key; until all of it is there, nobody sees any of it.

        If this fails or is interrupted, nothing has changed.

        :param told: called with the number of bytes of each segment that was sent.
        :raises StateError: if something is there already.
        """
        installs = [
            incoming.install(number, self._at(number)) for number in range(len(incoming.shards))
        ]
        done: list[int] = []
        try:
            for install in installs:
                install.upload(told)
            # The first shard is what makes a filter of them, so it comes last.
            for number in reversed(range(len(installs))):
                installs[number].finish()
                done.append(number)
        except BaseException:
            for number, install in enumerate(installs):
                if number not in done:
                    install.withdraw()
            for number in done:
                with suppress(BackendError, StateError):
                    retire(ShardReader(self._at(number)), int)
            raise

    def delete(self, shards: Sequence[ShardReader], told: Told = int) -> None:
        """Delete a filter that no crawl uses, and the requests beside it, some keys at a time.

        The first shard goes first: without it there is no filter. The requests beside a shard go at
        the same moment as its header: neither stays without the other. What an interruption leaves
        is among the :meth:`leftovers`.

        :param told: called with the number of keys of segments that were deleted.
        :raises StateError: if a crawl uses it. Nothing was changed then.
        """
        queues = [QueueReader(shard.place) for shard in shards]
        looks = [queue.look() for queue in queues]
        if any(look and look.alive for look in looks) or not deserted(shards):
            raise in_use(self._place)
        for shard, queue in zip(shards, queues, strict=True):
            retire(shard, told, queue.keys)

    def leftovers(self, current: Iterable[str] = ()) -> Iterator[bytes]:
        """Yield the segments and requests under the key that belong to no filter that is there.

        Looks at the names of all keys of the server, which may take a while and stops nobody.

        :param current: epochs of the filter that is there, of all its shards.
        """
        keep = {epoch.encode() for epoch in current}
        key = re.escape(self._place.key.encode())
        segment = re.compile(_SEGMENT % (key, key))
        queue = re.compile(_QUEUE % (key, key))
        others: dict[bytes, bool] = {}
        with self._place.explained():
            for name in self._names():
                if found := queue.fullmatch(name):
                    yield from self._deserted_keys(found["shard"])
                found = segment.fullmatch(name)
                if not found or found["epoch"] in keep:
                    continue
                shard = found["shard"]
                if shard and shard not in others:  # it may be that of another filter
                    others[shard] = bool(self._client.exists(self._place.key.encode() + shard))
                if not others.get(shard):
                    yield name

    def other_shards(self) -> Iterator[bytes]:
        """Yield the headers of shards but the first, as a deletion leaves them that was cut off."""
        header = re.compile(rb"%s:(?P<number>\d+)" % re.escape(self._place.key.encode()))
        for found in map(header.fullmatch, self._names()):
            if found and self._client.type(found[0]) == b"hash":
                told = self._client.hmget(found[0], "program", "shard")
                if told == [PROGRAM, found["number"]]:
                    yield found[0]

    def lone_queues(self) -> list[QueueReader]:
        """Return the request queues under the key that have no filter, also those in use.

        Looks at the names of all keys of the server, as :meth:`leftovers` does.
        """
        key = re.escape(self._place.key.encode())
        name = re.compile(_QUEUE % (key, key))
        found = map(name.fullmatch, sorted({*self._names()}))
        queues = [self._lone_queue(one["shard"]) for one in found if one]
        return [queue for queue in queues if queue]

    def _names(self) -> Iterator[bytes]:
        """Yield the names of all keys that may belong to the filter."""
        pattern = _GLOB.sub(r"\\\1", self._place.key) + ":*"
        with self._place.explained():
            yield from self._client.scan_iter(match=pattern, count=1000)

    def _lone_queue(self, shard: bytes) -> QueueReader | None:
        """Return what reads a shard's queue, if the shard's header is not there."""
        place = replace(self._place, key=self._place.key + shard.decode())
        with place.explained(), Within(2 * place.timeout):
            return None if place.client.exists(place.key) else QueueReader(place)

    def _deserted_keys(self, shard: bytes) -> Iterator[bytes]:
        """Yield the keys of a shard's queue, if neither its header nor a worker is there."""
        queue = self._lone_queue(shard)
        look = queue.look() if queue else None
        if queue and look and not look.alive:
            yield from (key.encode() for key in queue.keys if self._client.exists(key))

    def gone(self) -> bool:
        """Return whether no filter is under the key, or one whose deletion was interrupted."""
        kind = self.kind()
        if kind != "hash":
            return kind == "none"
        with self._place.explained(), Within(2 * self._place.timeout):
            return bool(self._client.hexists(self._place.key, "condemned"))

    def finish_deletion(self, told: Told = int) -> None:
        """Go on with a deletion that was interrupted; change nothing if there was none.

        Then the header of the first shard says so, or is gone while others are there.

        :param told: called with the number of keys that were deleted.
        """
        for number in range(_MOST_SHARDS):
            place = self._at(number)
            with place.explained(), Within(2 * place.timeout):
                is_hash = place.client.type(place.key) == b"hash"
                names = ("program", "shard", "clearing", "condemned")
                fields = place.client.hmget(place.key, *names) if is_hash else [None] * len(names)
            program, shard, clearing, condemned = fields
            if clearing and condemned:
                _clear(place, "", condemned.decode(), 1, told)
            elif program == PROGRAM and shard == b"%d" % number:
                if number == 0:
                    return  # the filter is there
                retire(ShardReader(place), told, QueueReader(place).keys)

    def delete_leftovers(self, keys: Sequence[bytes], told: Told = int) -> None:
        """Delete what :meth:`leftovers` has found."""
        by_slot: dict[bytes, list[bytes]] = {}
        for key in keys:
            by_slot.setdefault(key.rpartition(b":")[0], []).append(key)
        for some in by_slot.values():
            delete_keys(self._place, some, told)

    def policy(self) -> str:
        """Return the server's policy for a full memory; empty if it does not tell."""
        try:
            with self._place.explained():
                told = self._client.execute_command("INFO", "memory")
        except BackendError:
            return ""
        limited = bool(told.get("maxmemory"))
        return str(told.get("maxmemory_policy", "")) if limited else "noeviction"

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _at(self, number: int) -> Place:
        return replace(self._place, key=shard_key(self._place.key, number))


def deserted(shards: Sequence[ShardReader]) -> bool:
    """Return whether no worker uses a filter; those that are found dead are taken off its register.

    Takes about a second if one lives, and as long as a lease lasts if one was killed.

    :raises BackendError: if the server cannot be used.
    """
    return wait_deserted((_look_at(shard) for shard in shards), lambda: False)


def retire(shard: ShardReader, told: Told, beside: Sequence[str] = ()) -> None:
    """Delete one shard that no worker uses.

    :param beside: keys that go at the same moment as its header.
    :raises StateError: if one does. Nothing was changed then.
    """
    place, header = shard.place, shard.header
    if header.plan.layout != "bitmap":
        per_key = header.layout.blocks_per_key
        _clear(place, place.prefix(header.epoch), header.signature, per_key, told, beside)
        return
    with place.explained():
        word, *answer = ScriptRunner(place).retry_once(
            scripts.RETIRE, place.prefix(header.epoch), header.signature, *beside
        )
    if word == b"used":
        raise in_use(place)
    if word == b"ok":
        delete_segments(place, dict(zip(answer[::2], answer[1::2], strict=True)), told)


def _clear(
    place: Place,
    prefix: str,
    signature: str,
    blocks_per_key: int,
    told: Told,
    beside: Sequence[str] = (),
) -> None:
    """Delete a shard of many small keys: each call of the script deletes some of them.

    The keys `beside` go with the first call.
    """
    word = b"more"
    while word == b"more":
        with place.explained():
            word = ScriptRunner(place).retry_once(
                scripts.CLEAR, prefix, signature, _NOBODY, pace.LEASE, blocks_per_key, *beside
            )[0]
        told(1)
    if word == b"used":
        raise in_use(place)


def _look_at(shard: ShardReader) -> Callable[[Watch], bool]:
    place, header = shard.place, shard.header
    runner = ScriptRunner(place)

    def look(watch: Watch) -> bool:
        dead = [part for pair in watch.silent().items() for part in pair]
        began = time.monotonic()
        with place.explained():
            answer = runner.retry_once(
                scripts.LOOK, place.prefix(header.epoch), header.signature, _NOBODY, 0, *dead
            )
        if answer[0] != b"ok":
            return False
        watch.look(*read_look(began, answer))
        return True

    return look
