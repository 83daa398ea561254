"""A filter in Redis."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from scrapy_bloom.core.numbers import NumbersState
from scrapy_bloom.errors import BackendError, StateError
from scrapy_bloom.options import OnBackendError, Words, in_arguments
from scrapy_bloom.redis import pace
from scrapy_bloom.redis.connection import Target as Server
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.foreign import ForeignKey
from scrapy_bloom.redis.options import RedisOptions
from scrapy_bloom.redis.queue.reader import QueueReader
from scrapy_bloom.redis.reader import RedisReader, ShardReader
from scrapy_bloom.redis.transfer import in_use
from scrapy_bloom.redis.upkeep import Incoming, Upkeep, deserted
from scrapy_bloom.storage.snapshot import Identity
from scrapy_bloom.tools.contents import Contents, sorted_keys
from scrapy_bloom.tools.progress import Progress, silent
from scrapy_bloom.tools.target import Adder, Change, Open, Target

TIMEOUT: Final = 10.0
"""Seconds that Redis may hold up one call here: nobody waits for a page meanwhile."""

_POLL: Final = 0.25  # seconds between two looks whether workers are gone


class Queues(NamedTuple):
    """The requests beside a filter, open for reading.

    Attributes:
        readers: of each shard.
        shards: those of the filter; none if it has gone.
        spider: whose requests they are; empty if that is not known.
    """

    readers: Sequence[QueueReader]
    shards: Sequence[ShardReader]
    spider: str


class RedisTarget(Target):
    """A filter under a key of a Redis server or cluster.

    :param server: the server.
    :param key: the key of the filter.
    :param timeout: most seconds that Redis may hold up one call.
    :param words: names an option in messages.
    """

    def __init__(
        self, server: Server, key: str, *, timeout: float = TIMEOUT, words: Words = in_arguments
    ) -> None:
        self._server = server
        self.key = key
        self._timeout = timeout
        self._words = words

    @property
    def name(self) -> str:
        """Server and key."""
        return f"Redis at {self._server.where()}, key {self.key}"

    def exists(self) -> bool:
        """Return whether anything is under the key."""
        with self.upkeep() as upkeep:
            return upkeep.kind() != "none"

    def read(self, progress: Progress = silent) -> Contents:
        """Read all of the filter; every mark that is there now will be in what is returned."""
        with self.reader() as reader:
            return self._contents(reader, progress)

    @contextmanager
    def open(self) -> Iterator[Open]:
        """Connect, to ask the filter where it is."""
        with self.reader() as reader:
            yield Open(reader, _identity(reader), _again(reader))

    @contextmanager
    def making(self) -> Iterator[Change]:
        """Connect; nothing may be under the key, now and when the filter is put there."""
        with self.upkeep() as upkeep:
            if (kind := upkeep.kind()) != "none":
                raise self.occupied(f"a {kind}")
            yield RedisChange(upkeep)

    @contextmanager
    def adding(self) -> Iterator[Adder]:
        """Join the workers of the filter."""
        with self.reader() as reader:
            options = RedisOptions(
                key=self.key,
                shards=reader.shards,
                on_error=OnBackendError.CLOSE,
                timeout=self._timeout,
                layout=reader.parts()[0].header.plan.layout,
                words=self._words,
            )
            shared = RedisFilter(
                self._server,
                capacity=reader.parts()[0].header.plan.capacity,
                error_rate=reader.error_rate,
                digests=reader.digests,
                fingerprinter=reader.fingerprinter,
                canonical=reader.canonical,
                window=reader.parts()[0].header.plan.window or None,
                options=options,
            )
            with shared:
                yield RedisAdder(shared, _identity(reader))

    @contextmanager
    def queues(self) -> Iterator[Queues]:
        """Open the requests beside the filter for reading, also if the filter has gone.

        :raises StateError: if neither is there.
        """
        with self.upkeep() as upkeep:
            if upkeep.gone() and (lone := upkeep.lone_queues()):
                yield Queues(lone, (), "")
                return
        with self.reader() as reader:
            yield Queues(reader.queues(), reader.parts(), reader.spider())

    @property
    def url(self) -> str:
        """The URL of the server; empty if options tell where it is."""
        return self._server.url

    def foreign(self) -> ForeignKey:
        """Return what is under the key, where it is not ours."""
        return ForeignKey(self._server, self.key, timeout=self._timeout)

    def check_no_requests(self) -> None:
        """Look whether a crawl may be put here; waits for the leases of killed workers to end.

        :raises StateError: if a crawl uses filter or queue, or if requests wait.
        """
        with self.upkeep() as upkeep:
            if upkeep.gone() and not upkeep.lone_queues():
                return
        with self.queues() as queues:
            # Each worker of the queue is one of the filter.
            if not deserted(queues.shards) or _are_held(queues.readers):
                raise in_use(queues.readers[0].place)
            if count := sum(reader.held() for reader in queues.readers):
                raise StateError(
                    f"{self.name}: found {count:,} requests, expected none. Nothing was changed."
                    f" Resume that crawl, or make room with 'scrapy bloom delete'."
                )

    def has_requests(self) -> bool:
        """Return whether requests wait beside the filter, or were taken by workers."""
        with self.upkeep() as upkeep:
            if upkeep.gone() and not upkeep.lone_queues():
                return False
        with self.queues() as queues:
            return any(reader.held() for reader in queues.readers)

    def delete(self, progress: Progress = silent) -> None:
        """Delete the filter, some segments at a time."""
        with self.upkeep() as upkeep:
            if upkeep.kind() == "none":
                raise self.missing()
            with self.reader() as reader, progress("deleting", None, "segments") as told:
                upkeep.delete(reader.parts(), told)

    def leftovers(self) -> list[str]:
        """Return the keys that filters that are gone have left there, if none is there now."""
        with self.upkeep() as upkeep:
            keys = [*upkeep.other_shards(), *upkeep.leftovers()] if upkeep.gone() else []
            return [key.decode() for key in keys]

    def delete_leftovers(self, progress: Progress = silent) -> int:
        """Delete the keys of filters that are gone; return how many."""
        with self.upkeep() as upkeep:
            epochs: list[str] = []
            count = 0

            def counting(keys: int) -> None:
                nonlocal count
                count += keys
                told(keys)

            with progress("deleting", None, "keys") as told:
                upkeep.finish_deletion(counting)
                if upkeep.kind() != "none":
                    with self.reader() as reader:
                        epochs = [part.header.epoch for part in reader.parts()]
                upkeep.delete_leftovers(list(upkeep.leftovers(epochs)), counting)
        return count

    @contextmanager
    def reader(self) -> Iterator[RedisReader]:
        """Open the filter for reading only."""
        try:
            reader = RedisReader(
                self._server, key=self.key, timeout=self._timeout, words=self._words
            )
        except StateError as error:
            raise self._without_filter(error) from None
        with reader:
            yield reader

    @contextmanager
    def upkeep(self) -> Iterator[Upkeep]:
        """Connect, to install or delete."""
        upkeep = Upkeep(self._server, key=self.key, timeout=self._timeout, words=self._words)
        try:
            yield upkeep
        finally:
            upkeep.close()

    def _without_filter(self, error: StateError) -> StateError:
        """Return what to say where there is no filter: that requests are there, if they are."""
        try:
            with self.upkeep() as upkeep:
                lone = upkeep.lone_queues() if upkeep.gone() else []
                count = sum(queue.held() for queue in lone)
        except BackendError:  # this user may have no right to look for them
            return error
        if not lone:
            return error
        return StateError(
            f"{self.name}: found no filter, only {count:,} requests that wait there, expected a"
            f" filter. 'scrapy bloom queue' shows them, a crawl with scrapy_bloom.Scheduler fetches"
            f" them, 'scrapy bloom delete' removes them."
        )

    def _contents(self, reader: RedisReader, progress: Progress) -> Contents:
        with progress(f"reading {self.name}", reader.made_bytes(), "bytes") as told:
            before = _counted(reader)
            fetched = reader.fetch(told)
        looks = [look for queue in reader.queues() if (look := queue.look())]
        states, again = [one.state for one in fetched], _again(reader)
        numbers = [one.without(again) for one in states if isinstance(one, NumbersState)]
        if numbers:  # from which a page can be taken, so that no list is needed
            states, again = [*numbers], frozenset()
        return Contents(
            _identity(reader),
            reader.error_rate,
            states,
            again,
            waiting=sum(look.waiting + look.taken for look in looks) if looks else None,
            lost=[name for one in fetched for name in one.lost],
            counted=min(before, _counted(reader)) if numbers else None,
        )


class RedisAdder:
    """A worker that only marks.

    Attributes:
        identity: what the filter belongs to.
    """

    def __init__(self, shared: RedisFilter, identity: Identity) -> None:
        self.identity = identity
        self._shared = shared

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; it is there at once."""
        return self._shared.add_many(fingerprints)

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make a batch new once more; it is so at once."""
        return self._shared.forget_many(fingerprints)


class RedisChange(Change):
    """A filter in Redis that is to be made."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep

    def put(self, contents: Contents, progress: Progress = silent) -> None:
        """Send the filter; it is there when all of it is."""
        identity = contents.identity
        incoming = Incoming(
            contents.shards,
            contents.error_rate,
            identity.fingerprinter,
            json.dumps(sorted_keys(identity.canonical), sort_keys=True),
            identity.spider,
            contents.let_through,
        )
        with progress(f"writing {self._upkeep.name}", contents.bytes, "bytes") as told:
            self._upkeep.install(incoming, told)


def _are_held(readers: Sequence[QueueReader]) -> bool:
    """Return whether workers still hold the requests after the leases of killed ones."""
    end = time.monotonic() + pace.LEASE
    while any(look and look.alive for look in (one.look() for one in readers)):
        if time.monotonic() > end:
            return True
        time.sleep(_POLL)
    return False


def _counted(reader: RedisReader) -> int:
    return sum(part.read().items for part in reader.parts())


def _again(reader: RedisReader) -> frozenset[bytes]:
    """Return the fingerprints that are new once more, by the filter or by the queue beside it."""
    queues = [queue for queue in reader.queues() if queue.look()]
    return reader.forgotten().union(*(queue.fingerprints_again() for queue in queues))


def _identity(reader: RedisReader) -> Identity:
    return Identity(reader.spider(), reader.fingerprinter, json.loads(reader.canonical))
