"""Reads what is in Redis under a key, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice, zip_longest
from typing import Any

from scrapy_bloom.errors import StateError
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.header import PROGRAM, State, refusal
from scrapy_bloom.redis.key import Surprise, ask
from scrapy_bloom.redis.member import SECOND, Taken, with_length
from scrapy_bloom.redis.worker import Worker


class Reader:
    """Reads a filter and its requests.

    :param worker: runs the scripts; it takes no lease.
    :param key: of the filter.
    """

    def __init__(self, worker: Worker, key: str) -> None:
        self._worker, self._key = worker, key
        self._place = f"Redis at {worker.address}, key {key}"

    def state(self) -> State | None:
        """Return the state of the filter; None if nothing is there.

        :raises BackendError: if the server cannot be used.
        :raises StateError: if something else is under the key.
        """
        with self._worker.explained():
            kind = self._worker.client.type(self._key).decode()
            header = self._header() if kind == "hash" else {}
            now = float(self._worker.client.time()[0])
        if kind == "none" or (header.get("program") == PROGRAM and "epoch" not in header):
            return None
        if "program" not in header:
            raise refusal(self._place, f"found a {kind} that is not ours")
        return State.read(header, now, self._place)

    def existing(self) -> State:
        """Return the state of the filter.

        :raises BackendError: as :meth:`state`.
        :raises StateError: likewise, and if nothing is there.
        """
        if (state := self.state()) is not None:
            return state
        if keys := self.to_free():
            raise StateError(
                f"{self._place}: found a filter that was deleted, but not to its end:"
                f" {keys:,} keys are left. 'scrapy bloom delete' frees them, and so does the next"
                f" crawl."
            )
        raise StateError(
            f"{self._place}: found no filter. A crawl creates it when it starts, under"
            f" BLOOM_REDIS_KEY: by default BOT_NAME:SPIDER:bloom, such as books:books:bloom."
        )

    def contains_many(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each fingerprint whether it was added, without acting as a worker.

        :raises BloomError: as :meth:`existing`.
        """
        state = self.existing()
        probe = state.plan.hash(state.secret)
        try:
            return ask(self._worker, self._key, state.epoch, probe, fingerprints)
        except Surprise:
            raise StateError(
                f"{self._place}: the filter has just started over. Try again."
            ) from None

    def to_free(self) -> int:
        """Return how many keys of 4 MB the server has still to free.

        :raises BackendError: if the server cannot be used.
        """
        with self._worker.explained():
            going = self._worker.client.hget(self._key, "going") or b""
        return sum(int(row.rpartition(b".")[2]) for row in going.split())

    def failed(self) -> Iterator[Taken]:
        """Yield the requests on the failed list.

        :raises BackendError: if the server cannot be used.
        """
        with self._worker.explained():
            values = self._worker.client.hvals(beginning(self._key) + "failed")
            yield from (Taken.read(value, 0) for value in values)

    def schedule(self, count: int) -> dict[str, Any]:
        """Return what is sent when. Dates are in seconds since 1970.

        :param count: how many slots to name.
        :returns: ``hosts``, how many download slots have requests that need not wait for a time;
            ``later``, how many requests wait for a time; ``next_due``, when the first of them may
            be sent, None without any; ``holds``, slots that are left alone, each until when.
        :raises BackendError: if the server cannot be used.
        """
        client, base = self._worker.client, beginning(self._key)
        with self._worker.explained():
            (seconds, fraction), skew = client.time(), self._skew()
            clock = int((seconds + skew) * SECOND) + fraction
            since = clock, "inf"
            first = client.zrangebyscore(base + "later", *since, 0, 1, withscores=True)
            holds = client.zrangebyscore(base + "holds", *since, 0, count, withscores=True)
            return {
                "hosts": client.zcard(base + "turns"),
                "later": client.zcount(base + "later", *since),
                "next_due": first[0][1] / SECOND - skew if first else None,
                "holds": {
                    slot.decode(errors="replace"): until / SECOND - skew for slot, until in holds
                },
            }

    def upcoming(self, count: int) -> Iterator[Taken]:
        """Yield the requests that are sent next, as if all slots had the same delay.

        :raises BackendError: if the server cannot be used.
        """
        client, base = self._worker.client, beginning(self._key)
        with self._worker.explained():
            slots = client.zrange(base + "turns", 0, count - 1)
            ends = ((b"[" + start, b"(" + start + b"\xff") for start in map(with_length, slots))
            first = [client.zrangebylex(base + "queue", *each, 0, count) for each in ends]
            in_turn = chain.from_iterable(zip_longest(*first))
            yield from map(Taken.read_member, islice(filter(None, in_turn), count))

    def _skew(self) -> float:
        """Return what the times of requests and slots are ahead of the server's clock."""
        words = (self._worker.client.hget(self._key, "well") or b"").split()
        return float(words[3]) if len(words) > 3 else 0.0  # noqa: PLR2004 - the fourth of them

    def _header(self) -> dict[str, bytes]:
        """Return the header, using only commands that every worker may use."""
        client = self._worker.client
        names = client.hkeys(self._key)
        values = client.hmget(self._key, names) if names else ()
        pairs = zip(names, values, strict=True)
        return {name.decode(errors="replace"): value for name, value in pairs if value is not None}
