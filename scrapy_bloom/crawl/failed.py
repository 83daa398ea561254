"""A page that no callback got: why it has failed or is unparsed, and in how many runs."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from scrapy_bloom.crawl.history import ORIGINAL, TRIES
from scrapy_bloom.crawl.outcomes import APART, MOST_RUNS, REDIRECTED, Reason
from scrapy_bloom.crawl.serialize import read_fields, write_fields

_LENGTH: Final = struct.Struct(">I")


class FailedPage(NamedTuple):
    """A request that has failed, or is unparsed.

    Attributes:
        kind: of the reason, see :class:`~scrapy_bloom.crawl.outcomes.Reason`.
        message: of the reason.
        date: when it failed, in seconds since 1970.
        tries: in how many runs it has failed, as far as they count.
        worker: which worker says so; empty in a job directory.
        unparsed: whether it is fetched again only if somebody says so: no callback got it, which is
            no failure, or it has failed in :data:`~.outcomes.MOST_RUNS` runs.
        way: marks of where its redirects led, to be forgotten if it is put back by hand. Those of
            what has failed were forgotten when it failed: jobs record them, Redis elsewhere.
        body: the request that the spider yielded, to be fetched again.
    """

    kind: str
    message: str
    date: float
    tries: int
    worker: str
    unparsed: bool
    way: tuple[bytes, ...]
    body: bytes

    @property
    def leads_to_seen(self) -> bool:
        """Whether it is unparsed as it was redirected to a page that was seen, its way's last."""
        return self.kind == REDIRECTED and bool(self.way) and not self.tries

    @classmethod
    def of(
        cls,
        stored: bytes,
        reason: Reason,
        now: float,
        worker: str = "",
        way: Collection[bytes] = (),
        *,
        read: Callable[[bytes], dict[str, Any]] = read_fields,
        write: Callable[[dict[str, Any]], bytes] = write_fields,
    ) -> FailedPage:
        """Return what to list of a request that no callback got.

        One that has failed in an earlier run fails again, whatever it was this time.

        A failure counts when it happens, and at most once an hour: a crawl that is started again
        and again in an outage would give up all its pages within a minute.

        :param stored: the request as it was stored: perhaps a retry or a redirect of the original.
        :param now: the time, in seconds since 1970.
        :param way: marks of where its redirects led, but for that of ``reason``, if it has one.
        :param read: reads a request: in Redis, as what a stranger may have written.
        :param write: writes one.
        """
        try:
            body = read(stored)["meta"].get(ORIGINAL) or stored
            fields = read(body)
            tries, last = fields["meta"].get(TRIES, (0, 0.0))
            if tries or not reason.unparsed:
                if not 0 <= now - last < APART:
                    tries, last = tries + 1, now
                fields["meta"] = {**fields["meta"], TRIES: [tries, last]}
                body = write(fields)
        except Exception:  # of the project's: it is listed all the same, and never given up
            body, tries = stored, 0
        unparsed = tries >= MOST_RUNS if tries else reason.unparsed
        seen = () if reason.to is None else (reason.to,)
        way = (*way, *seen) if unparsed else ()
        return cls(reason.kind, reason.message, now, tries, worker, unparsed, way, body)

    @property
    def is_given_up(self) -> bool:
        """Whether it has failed in so many runs that it is not fetched again by itself."""
        return self.unparsed and self.tries > 0

    def retried(
        self,
        *,
        read: Callable[[bytes], dict[str, Any]] = read_fields,
        write: Callable[[dict[str, Any]], bytes] = write_fields,
    ) -> FailedPage:
        """Return it as if it had never failed, to be put back by hand. See :meth:`of`."""
        fields = read(self.body)
        fields["meta"].pop(TRIES, None)
        return self._replace(tries=0, unparsed=False, way=(), body=write(fields))

    def pack(self) -> bytes:
        """Return it as bytes: a length, so many bytes of JSON with all but the body, the body."""
        head = json.dumps((*self[:-2], [mark.hex() for mark in self.way])).encode()
        return _LENGTH.pack(len(head)) + head + self.body

    @classmethod
    def unpack(cls, packed: bytes) -> FailedPage:
        """Return what :meth:`pack` has packed.

        :raises ValueError: if it is something else.
        """
        try:
            end = _LENGTH.size + _LENGTH.unpack_from(packed)[0]
            kind, message, date, tries, worker, unparsed, way = json.loads(
                packed[_LENGTH.size : end]
            )
            marks = (*map(bytes.fromhex, way),)
            return cls(kind, message, date, tries, worker, unparsed, marks, packed[end:])
        except (struct.error, TypeError) as error:
            raise ValueError("not a request on the failed list") from error
