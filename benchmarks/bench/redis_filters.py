"""Whom we meet in Redis: each filter as a function from fingerprints to verdicts.

All but ours connect as scrapy-redis does, with its options, by which redis-py tries twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from scrapy_bloom import RedisFilter
from scrapy_bloom.core.growth import filter_hashes
from scrapy_bloom.options import DEFAULT_ERROR_RATE
from scrapy_bloom.redis import scripts
from scrapy_bloom.redis.layout import layout_of

Check = Callable[[Sequence[bytes]], list[bool]]
"""Adds fingerprints and returns for each, in order, whether it is called seen."""

BATCH: Final = 100
BLOOMFILTER_BIT: Final = 27  # of scrapy-redis-bloomfilter: 16 MB, enough for a million at 1e-6


@dataclass(frozen=True)
class Candidate:
    """One way to filter.

    Attributes:
        name: of it.
        open: takes the URL of a server and the name of a key that is unused or its own.
        commands: what its requests that check have in them.
        batch: fingerprints in one call.
        trips: round trips that a call takes at most.
        module: whether the server needs RedisBloom.
    """

    name: str
    open: Callable[[str, str], AbstractContextManager[Check]]
    commands: tuple[bytes, ...]
    batch: int = 1
    trips: int = 1
    module: bool = False

    @property
    def trips_each(self) -> float:
        """Round trips for one fingerprint, at most."""
        return self.trips / self.batch


def candidates(*, module: bool) -> list[Candidate]:
    """Return all that run on a server with or without RedisBloom."""
    return [each for each in _ALL if module or not each.module]


SCRAPY_REDIS: Final = "scrapy-redis (SADD)"
PIPELINED: Final = f"SADD, pipelines of {BATCH}"
BLOOMFILTER: Final = "scrapy-redis-bloomfilter"
BITFIELD: Final = "one BITFIELD"
BF_ADD: Final = "RedisBloom, BF.ADD"
BF_MADD: Final = f"RedisBloom, BF.MADD of {BATCH}"
OURS: Final = "ours, one by one"
OURS_ASKING: Final = "ours, one by one, no memory"
OURS_BATCHED: Final = f"ours, batches of {BATCH}"
OURS_BATCHED_ASKING: Final = f"ours, batches of {BATCH}, no memory"


def _client(url: str) -> Any:
    from scrapy_redis import connection, defaults

    return connection.get_redis(url=url, **defaults.REDIS_PARAMS)


def _one_by_one(dupefilter: Any) -> Check:
    dupefilter.request_fingerprint = bytes.hex
    seen = dupefilter.request_seen

    def check(fingerprints: Sequence[bytes]) -> list[bool]:
        return [seen(fingerprint) for fingerprint in fingerprints]

    return check


def _by_batches(ask: Callable[[Sequence[bytes]], Sequence[bool]]) -> Check:
    def check(fingerprints: Sequence[bytes]) -> list[bool]:
        verdicts: list[bool] = []
        for start in range(0, len(fingerprints), BATCH):
            verdicts += ask(fingerprints[start : start + BATCH])
        return verdicts

    return check


@contextmanager
def _scrapy_redis(url: str, key: str) -> Iterator[Check]:
    from scrapy_redis.dupefilter import RFPDupeFilter

    with _client(url) as client:
        yield _one_by_one(RFPDupeFilter(client, key))


@contextmanager
def _pipelined(url: str, key: str) -> Iterator[Check]:
    with _client(url) as client:

        def ask(fingerprints: Sequence[bytes]) -> list[bool]:
            pipeline = client.pipeline(transaction=False)
            for fingerprint in fingerprints:
                pipeline.sadd(key, fingerprint.hex())
            return [not added for added in pipeline.execute()]

        yield _by_batches(ask)


@contextmanager
def _bloomfilter(url: str, key: str) -> Iterator[Check]:
    from scrapy_redis_bloomfilter.defaults import BLOOMFILTER_HASH_NUMBER
    from scrapy_redis_bloomfilter.dupefilter import RFPDupeFilter

    with _client(url) as client:
        yield _one_by_one(
            RFPDupeFilter(client, key, False, BLOOMFILTER_BIT, BLOOMFILTER_HASH_NUMBER)  # noqa: FBT003
        )


@contextmanager
def _bitfield(url: str, key: str) -> Iterator[Check]:
    from bench.redis_dupefilters import BitfieldDupeFilter

    with _client(url) as client:
        yield _one_by_one(BitfieldDupeFilter(client, key))


@contextmanager
def _bf_add(url: str, key: str) -> Iterator[Check]:
    from bench.redis_dupefilters import RedisBloomDupeFilter

    with _client(url) as client:
        yield _one_by_one(RedisBloomDupeFilter(client, key))


@contextmanager
def _bf_madd(url: str, key: str) -> Iterator[Check]:
    from bench.redis_dupefilters import reserve

    with _client(url) as client:
        reserve(client, key)

        def ask(fingerprints: Sequence[bytes]) -> list[bool]:
            return [not added for added in client.execute_command("BF.MADD", key, *fingerprints)]

        yield _by_batches(ask)


def _ours(batch: int, cache: int = 100_000) -> Callable[[str, str], AbstractContextManager[Check]]:
    """Return ours, by one or by batches, with a memory of that many fingerprints."""

    @contextmanager
    def opened(url: str, key: str) -> Iterator[Check]:
        seen = RedisFilter.from_url(url, key=key, cache=cache)

        def one_by_one(fingerprints: Sequence[bytes]) -> list[bool]:
            return [seen.add(fingerprint) for fingerprint in fingerprints]

        yield one_by_one if batch == 1 else _by_batches(seen.add_many)
        seen.close()

    return opened


_SCRIPT: Final = (
    scripts.add(layout_of("bitmap"), filter_hashes(DEFAULT_ERROR_RATE)).sha.encode(),
    b"\r\nEVAL\r\n",
)
_ALL: Final = (
    Candidate(SCRAPY_REDIS, _scrapy_redis, (b"SADD",)),
    Candidate(PIPELINED, _pipelined, (b"SADD",), batch=BATCH),
    Candidate(BLOOMFILTER, _bloomfilter, (b"GETBIT", b"SETBIT"), trips=12),
    Candidate(BITFIELD, _bitfield, (b"BITFIELD",)),
    Candidate(BF_ADD, _bf_add, (b"BF.ADD",), module=True),
    Candidate(BF_MADD, _bf_madd, (b"BF.MADD",), batch=BATCH, module=True),
    Candidate(OURS_ASKING, _ours(1, cache=0), _SCRIPT),
    Candidate(OURS, _ours(1), _SCRIPT),
    Candidate(OURS_BATCHED_ASKING, _ours(BATCH, cache=0), _SCRIPT, batch=BATCH),
    Candidate(OURS_BATCHED, _ours(BATCH), _SCRIPT, batch=BATCH),
)
