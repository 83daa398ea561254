"""Reads what is in Redis under a key, and changes nothing."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import chain, islice, zip_longest
from typing import Any, Final, NamedTuple

from scrapy_bloom.crawl.account import Account
from scrapy_bloom.crawl.failed import Failed
from scrapy_bloom.errors import StateError
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.header import PROGRAM, Counts, State, refusal
from scrapy_bloom.redis.key import Surprise, ask
from scrapy_bloom.redis.member import SECOND, Taken, with_length
from scrapy_bloom.redis.worker import Worker

_PORTION: Final = 50  # rows of the failed list that are read at once
_ROW: Final = struct.Struct(">IBdH")  # run, whether it is given up, date, length of the reason


class Listed(NamedTuple):
    """A row of the failed list, see ``lua/_failed.lua``.

    Attributes:
        key: its key there.
        failed: the request, and why it has failed.
        request: the same, as it was taken.
    """

    key: bytes
    failed: Failed
    request: Taken

    @classmethod
    def read(cls, key: bytes, value: bytes) -> Listed:
        """Parse a row."""
        *_, length = _ROW.unpack_from(value)
        failed = Failed.unpack(value[_ROW.size + length :])
        request = Taken.read_member(failed.body)
        return cls(key, failed._replace(body=request.body), request)

    def write(self, kind: bytes) -> bytes:
        """Return the row that it is, as one that failed before the first run.

        :param kind: as which it counts among the reasons.
        """
        head = _ROW.pack(0, self.failed.given_up, self.failed.date, len(kind))
        return head + kind + self.failed._replace(body=self.request.member).pack()


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

    def failed(self) -> Iterator[Listed]:
        """Yield the requests on the failed list, in no order. During a crawl one may come twice.

        :raises BackendError: if the server cannot be used.
        """
        return (Listed.read(*row) for row in self.scan("hscan", "failed", _PORTION))

    def scan(self, command: str, name: str, count: int) -> Iterator[tuple[bytes, Any]]:
        """Yield the pairs of a hash or a sorted set; what is moved meanwhile may come twice.

        :param name: how its key ends.
        :param count: about how many are read at once.
        :raises BackendError: if the server cannot be used.
        """
        key, cursor = beginning(self._key) + name, 0
        while True:
            with self._worker.explained():
                scan = getattr(self._worker.client, command)
                cursor, found = scan(key, cursor, count=count)
            yield from (found.items() if isinstance(found, dict) else found)
            if not cursor:
                return

    def account(self, counts: Counts) -> Account:
        """Return what has become of all pages.

        :param counts: of the state.
        :raises BackendError: if the server cannot be used.
        """
        base = beginning(self._key)
        reasons, statuses = (self._hash(base + name) for name in ("reasons", "statuses"))
        return Account(
            done=counts.done,
            redirected=counts.redirected,
            failed=counts.failed,
            waiting=counts.waiting,
            in_flight=counts.taken,
            reasons={name: int(count) for name, count in reasons.items()},
            statuses={name: int(count) for name, count in statuses.items()},
            seen=counts.seen,
        )

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
            clock, skew = self.clock()
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

    def slots(self, count: int) -> list[dict[str, Any]]:
        """Return the download slots that are served next, and some that are left alone.

        :param count: how many of each.
        :returns: for each its ``name``; how many requests are ``waiting`` for no time of their own;
            for how long it will ``wait`` for its turn; the ``delay`` between two of its requests;
            and ``until`` when it is left alone, in seconds since 1970, else 0.
        :raises BackendError: if the server cannot be used.
        """
        client, base = self._worker.client, beginning(self._key)
        with self._worker.explained():
            clock, skew = self.clock()
            until = client.zrangebyscore(base + "holds", clock, "inf", 0, count, withscores=True)
            turns = client.zrange(base + "turns", 0, count - 1, withscores=True)
            until, turn = dict(until), dict([*until, *turns])
            with client.pipeline(transaction=False) as pipeline:
                for start in map(with_length, turn):
                    pipeline.zlexcount(base + "queue", b"[" + start, b"(" + start + b"\xff")
                waiting = pipeline.execute()
            paces = client.hmget(base + "delays", [*turn]) if turn else ()
            default = client.hget(self._key, "delay") or b"0"
        return [
            {
                "name": slot.decode(errors="replace"),
                "waiting": some,
                "wait": max(0.0, turn[slot] - clock) / SECOND,
                "delay": float((pace or default).split()[0]) if slot else 0.0,
                "until": until[slot] / SECOND - skew if slot in until else 0.0,
            }
            for slot, some, pace in zip(turn, waiting, paces, strict=True)
        ]

    def taken(self) -> dict[str, set[bytes]]:
        """Return the ids of the requests that each worker has taken.

        :raises BackendError: if the server cannot be used.
        """
        found: dict[str, set[bytes]] = {}
        with self._worker.explained():
            for field in self._worker.client.hkeys(beginning(self._key) + "taken"):
                found.setdefault(field[:-8].decode(errors="replace"), set()).add(field[-8:])
        return found

    def upcoming(self, count: int) -> Iterator[Taken]:
        """Yield the requests that are sent next, as if all slots had the same delay.

        :raises BackendError: if the server cannot be used.
        """
        client, base = self._worker.client, beginning(self._key)
        with self._worker.explained():
            slots = client.zrange(base + "turns", 0, count - 1) if count else ()
            ends = ((b"[" + start, b"(" + start + b"\xff") for start in map(with_length, slots))
            first = [client.zrangebylex(base + "queue", *each, 0, count) for each in ends]
            in_turn = chain.from_iterable(zip_longest(*first))
            yield from map(Taken.read_member, islice(filter(None, in_turn), count))

    def delayed(self, count: int) -> Iterator[tuple[Taken, float]]:
        """Yield requests that wait for a time, each with its own, in seconds since 1970.

        :raises BackendError: if the server cannot be used.
        """
        if count:
            _, skew = self.clock()
            key = beginning(self._key) + "later"
            with self._worker.explained():
                range_ = self._worker.client.zrangebyscore
                found = range_(key, "-inf", "inf", 0, count, withscores=True)
            for member, due in found:
                yield Taken.read_member(member), due / SECOND - skew

    def clock(self) -> tuple[int, float]:
        """Return the time of requests and slots, in microseconds.

        And by how many seconds it is ahead of the server's clock.

        :raises BackendError: if the server cannot be used.
        """
        with self._worker.explained():
            words = (self._worker.client.hget(self._key, "well") or b"").split()
            seconds, fraction = self._worker.client.time()
        skew = float(words[3]) if len(words) > 3 else 0.0  # noqa: PLR2004 - the fourth of them
        return int((seconds + skew) * SECOND) + fraction, skew

    def _header(self) -> dict[str, bytes]:
        return self._hash(self._key)

    def _hash(self, key: str) -> dict[str, bytes]:
        """Return a hash, using only commands that every worker may use."""
        client = self._worker.client
        with self._worker.explained():
            names = client.hkeys(key)
            values = client.hmget(key, names) if names else ()
        pairs = zip(names, values, strict=True)
        return {name.decode(errors="replace"): value for name, value in pairs if value is not None}
