"""Reads what is in Redis under a key, and changes nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, zip_longest
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from scrapy_bloom.crawl.account import Account
from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.errors import STRANGE, StateError, shown
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.header import FORMAT, PROGRAM, Counts, State, read_skew, refusal
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.member import NO_BODY, SECOND, Taken, id_in, with_length
from scrapy_bloom.redis.worker import Surprise, contains_many

_Item = TypeVar("_Item")

_PORTION: Final = 100  # heads that are read at once
_BODIES: Final = 10  # bodies that are read at once: some are large
_STARTS: Final = 1_000  # start requests that are read at once
_ROW: Final = struct.Struct(">H")  # length of the reason


class FailedRow(NamedTuple):
    """A row of one of the lists of what no callback got, see ``lua/_failed.lua``.

    Attributes:
        key: its key there.
        failed: the request, and why it is there.
        request: the same, as it was taken.
    """

    key: bytes
    failed: FailedPage
    request: Taken

    @classmethod
    def read(cls, key: bytes, row: bytes, body: bytes) -> FailedRow:
        """Parse a row, and the body of its request."""
        (length,) = _ROW.unpack_from(row)
        failed = FailedPage.unpack(row[_ROW.size + length :])
        request = Taken.read_parts(failed.body, body)
        return cls(key, failed._replace(body=request.body), request)


class Reader:
    """Reads a filter and its requests.

    All methods raise BackendError if the server cannot be used.

    :param link: runs the scripts; it takes no lease.
    :param key: of the filter.

    Attributes:
        skipped: requests that could not be read, and why.
    """

    def __init__(self, link: Link, key: str) -> None:
        self._link, self._key, self._base = link, key, beginning(key)
        self._place = f"Redis at {link.address}, key {key}"
        self.skipped: dict[str, str] = {}

    def state(self) -> State | None:
        """Return the state of the filter; None if nothing is there.

        :raises StateError: if something else is under the key.
        """
        with self._link.explained():
            kind = self._link.client.type(self._key).decode()
            header = self._header() if kind == "hash" else {}
            now = float(self._link.client.time()[0])
        is_ours = header.get("program") == PROGRAM and header.get("format", FORMAT) == FORMAT
        if kind == "none" or (is_ours and "epoch" not in header):
            return None
        if "program" not in header:
            raise refusal(self._place, f"found a {kind} that is not ours", may_delete=False)
        return State.read(header, now, self._place)

    def existing(self) -> State:
        """Return the state of the filter.

        :raises StateError: as :meth:`state`, and if nothing is there.
        """
        if (state := self.state()) is not None:
            return state
        if keys := self.to_free():
            raise StateError(
                f"{self._place}: found a filter whose deletion was interrupted: {keys:,} keys are"
                f" left. 'scrapy bloom delete' frees them, and so does the next crawl."
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
            return contains_many(self._link, self._key, state.epoch, probe, fingerprints)
        except Surprise:
            raise StateError(
                f"{self._place}: the filter has just started over. Try again."
            ) from None

    def to_free(self) -> int:
        """Return how many keys of 4 MB the server has still to free."""
        with self._link.explained():
            going = self._link.client.hget(self._key, "going") or b""
        return sum(int(row.rpartition(b".")[2]) for row in going.split())

    def failed(self) -> Iterator[FailedRow]:
        """Yield what no callback got, in no order. During a crawl one may come twice."""
        found = chain(self.scan("hscan", "failed"), self.scan("hscan", "unparsed"))
        for (key, row), body in self._with_bodies(found, itemgetter(1), NO_BODY):
            yield from self._read(key, FailedRow.read, key, row, body)

    def _with_bodies(
        self, found: Iterable[_Item], head: Callable[[_Item], bytes], missing: bytes = b""
    ) -> Iterator[tuple[_Item, bytes]]:
        """Yield what was found, each with the body of its request.

        :param head: returns the head of a request, or what ends with it.
        :param missing: stands for a body that has vanished; without it, such requests are left out.
        """
        found = iter(found)
        while batch := [*islice(found, _BODIES)]:
            ids = [id_in(head(each)) for each in batch]
            with self._link.explained():
                bodies = self._link.client.hmget(self._base + "bodies", ids)
            found_bodies = (body or missing for body in bodies)
            yield from (
                (each, body) for each, body in zip(batch, found_bodies, strict=True) if body
            )

    def _read(self, id_: bytes, read: Callable[..., _Item], *parts: object) -> Iterator[_Item]:
        """Yield what is read of the parts of a request; if they are strange, record that."""
        try:
            item = read(*parts)
        except STRANGE as error:
            self.skipped[id_.hex()] = repr(error)
        else:
            yield item

    def _due(
        self, found: Iterable[tuple[bytes, float]], skew: float
    ) -> Iterator[tuple[Taken, float]]:
        """Yield requests of ``later``, each with its time, in seconds since 1970."""
        for (head, due), body in self._with_bodies(found, itemgetter(0)):
            for taken in self._read(id_in(head), Taken.read_parts, head, body):
                yield taken, due / SECOND - skew

    def starts(self) -> Iterator[bytes]:
        """Yield the ids of start requests that are not filtered and are done."""
        return (id_ for id_, what in self.scan("hscan", "starts", _STARTS) if what == b"d")

    def scan(self, command: str, name: str, count: int = _PORTION) -> Iterator[tuple[bytes, Any]]:
        """Yield the pairs of a hash or a sorted set; what is moved meanwhile may come twice.

        :param name: how its key ends.
        """
        key, cursor = self._base + name, 0
        while True:
            with self._link.explained():
                scan = getattr(self._link.client, command)
                cursor, found = scan(key, cursor, count=count)
            yield from (found.items() if isinstance(found, dict) else found)
            if not cursor:
                return

    def account(self, counts: Counts) -> Account:
        """Return what has become of all pages.

        :param counts: of the state.
        """
        reasons, decisions = map(self._counts, ("reasons", "decisions"))
        return Account(
            done=counts.done,
            waiting=counts.waiting,
            in_flight=counts.taken,
            failures=reasons,
            decisions=decisions,
            not_kept=counts.not_kept,
            seen=counts.seen,
        )

    def _counts(self, name: str) -> dict[str, int]:
        """Return how many there are for each reason, from the hash of this name."""
        return {
            reason: self._number(f"{name}, {reason}", count, int)
            for reason, count in self._hash(self._base + name).items()
        }

    def _number(self, name: str, found: bytes, read: Callable[[bytes], _Item]) -> _Item:
        """Read a number.

        :param name: the field that has it.
        :raises StateError: if it has none.
        """
        try:
            return read(found)
        except ValueError:
            raise refusal(self._place, f"found {name}: {shown(found)}, expected a number") from None

    def schedule(self, count: int) -> dict[str, Any]:
        """Return what is sent when. Dates are in seconds since 1970.

        :param count: how many slots to name.
        :returns: ``hosts``, how many download slots have requests that need not wait for a time;
            ``later``, how many requests wait for a time; ``next_due``, when the first of them may
            be sent, None without any; ``paused``, slots that are paused, each until when.
        """
        client, base = self._link.client, self._base
        with self._link.explained():
            clock, skew = self.clock()
            since = clock, "inf"
            first = client.zrangebyscore(base + "later", *since, 0, 1, withscores=True)
            pauses = client.zrangebyscore(base + "paused", *since, 0, count, withscores=True)
            return {
                "hosts": client.zcard(base + "turns"),
                "later": client.zcount(base + "later", *since),
                "next_due": first[0][1] / SECOND - skew if first else None,
                "paused": {
                    slot.decode(errors="replace"): until / SECOND - skew for slot, until in pauses
                },
            }

    def slots(self, count: int) -> list[dict[str, Any]]:
        """Return the download slots that are served next, and some that are paused.

        :param count: how many of each.
        :returns: for each its ``name``; how many requests are ``waiting`` for no time of their own;
            for how long it will ``wait`` for its turn; the ``delay`` between two of its requests;
            and ``until`` when it is paused, in seconds since 1970, else 0.
        """
        client, base = self._link.client, self._base
        with self._link.explained():
            clock, skew = self.clock()
            until = client.zrangebyscore(base + "paused", clock, "inf", 0, count, withscores=True)
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
                "waiting": number,
                "wait": max(0.0, turn[slot] - clock) / SECOND,
                "delay": float((pace or default).split()[0]) if slot else 0.0,
                "until": until[slot] / SECOND - skew if slot in until else 0.0,
            }
            for slot, number, pace in zip(turn, waiting, paces, strict=True)
        ]

    def taken(self) -> dict[str, set[bytes]]:
        """Return the ids of the requests that each worker has taken."""
        found: dict[str, set[bytes]] = {}
        with self._link.explained():
            for field in self._link.client.hkeys(self._base + "taken"):
                found.setdefault(field[:-8].decode(errors="replace"), set()).add(field[-8:])
        return found

    def upcoming(self, count: int) -> Iterator[Taken]:
        """Yield the requests that are sent next, as if all slots had the same delay."""
        client, base = self._link.client, self._base
        with self._link.explained():
            slots = client.zrange(base + "turns", 0, count - 1) if count else ()
            ranges = ((b"[" + start, b"(" + start + b"\xff") for start in map(with_length, slots))
            first = [client.zrangebylex(base + "queue", *each, 0, count) for each in ranges]
            in_turn = chain.from_iterable(zip_longest(*first))
        heads = islice(filter(None, in_turn), count)
        for each in self._with_bodies(heads, bytes):
            yield from self._read(id_in(each[0]), Taken.read_parts, *each)

    def delayed(self, count: int) -> Iterator[tuple[Taken, float]]:
        """Yield requests that wait for a time, each with its own, in seconds since 1970."""
        if count:
            _, skew = self.clock()
            with self._link.explained():
                range_ = self._link.client.zrangebyscore
                found = range_(self._base + "later", "-inf", "inf", 0, count, withscores=True)
            yield from self._due(found, skew)

    def in_flight(self) -> Iterator[tuple[Taken, str, float]]:
        """Yield the requests that were taken, by which worker, and since how many seconds."""
        clock, _ = self.clock()
        found = self._with_bodies(self.scan("hscan", "taken"), itemgetter(1))
        for (field, row), body in found:
            for taken in self._read(id_in(row), Taken.read, row, body, -clock / SECOND):
                yield taken, field[:-8].decode(errors="replace"), -taken.start

    def waiting(self) -> Iterator[tuple[Taken, float]]:
        """Yield the requests that wait, each with when it may be sent, in seconds since 1970.

        Those of a slot come in their order; those that wait for a time come last.
        """
        last = b"-"
        while True:
            with self._link.explained():
                range_ = self._link.client.zrangebylex
                heads = range_(self._base + "queue", last, "+", 0, _PORTION)
            for each in self._with_bodies(heads, bytes):
                for taken in self._read(id_in(each[0]), Taken.read_parts, *each):
                    yield taken, 0.0
            if len(heads) < _PORTION:
                break
            last = b"(" + heads[-1]
        _, skew = self.clock()
        yield from self._due(self.scan("zscan", "later"), skew)

    def clock(self) -> tuple[int, float]:
        """Return the time of requests and slots, in microseconds.

        And by how many seconds it is ahead of the server's clock.
        """
        with self._link.explained():
            found = self._link.client.hget(self._key, "skew") or b"0"
            skew = self._number("skew", found, read_skew)
            seconds, fraction = self._link.client.time()
        return int((seconds + skew) * SECOND) + fraction, skew

    def _header(self) -> dict[str, bytes]:
        return self._hash(self._key)

    def _hash(self, key: str) -> dict[str, bytes]:
        """Return a hash, using only commands that every worker may use."""
        client = self._link.client
        with self._link.explained():
            names = client.hkeys(key)
            values = client.hmget(key, names) if names else ()
        pairs = zip(names, values, strict=True)
        return {name.decode(errors="replace"): value for name, value in pairs if value is not None}
