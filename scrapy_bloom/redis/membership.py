"""A worker's place in one shard: it opens the filter, registers, keeps its lease, and leaves."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain, count, islice
from typing import Any, Final

from scrapy_bloom.core.growth import SliceSpec
from scrapy_bloom.errors import StateError
from scrapy_bloom.redis import pace, scripts
from scrapy_bloom.redis.connection import FAULTS
from scrapy_bloom.redis.deadline import Within
from scrapy_bloom.redis.header import Header, Plan, check_plan, new_fields, read_header
from scrapy_bloom.redis.layout import Layout, key_count, keys_at_once, layout_of
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.watch import Watch

logger = logging.getLogger(__name__)

_CALLS: Final = 10  # whose time it may take to delete a lost filter


@dataclass(frozen=True)
class Registration:
    """A worker's entry in the register of one filter.

    It never changes; a new entry replaces it as a whole. So the heartbeat's thread, which reads it
    while the crawl runs, never sees parts of two entries.

    Attributes:
        header: what the filter is, as it was found.
        prefix: the beginning of the names of its segments.
        worker: the worker's id.
        others: whether there were others in the register when this one came.
        resting: whether the lease was given up, because the worker is finishing or wants to clear
            the filter.
    """

    header: Header
    prefix: str
    worker: str
    others: bool
    resting: bool = False


class Membership:
    """One worker in one shard.

    :param link: to the shard's server.
    :param plan: what the shard must be.

    Attributes:
        registration: the worker's entry; None before :meth:`open` and when the filter was deleted.
        losses: how often parts of the filter were lost, as far as the worker knows.
        forgotten: how many items were taken out of the filter, when the lease was last renewed.
        renewed: when the lease was last renewed, on the monotonic clock.
    """

    def __init__(self, link: Link, plan: Plan) -> None:
        self.plan = plan
        self.registration: Registration | None = None
        self.losses = self.forgotten = 0
        self.renewed = time.monotonic()
        self._link = link
        self._newcomers: Watch | None = None  # watches the workers that were there before this one

    def open(self, rebuilt_of: str = "") -> bool:
        """Find the filter or make it, and register; return whether it was made.

        :param rebuilt_of: epoch of the lost filter that a new one takes the place of.
        :raises StateError: if something else is in its place.
        """
        place = self._link.place
        while True:
            fields = new_fields(self.plan, rebuilt_of)
            flat = [part for field in fields.items() for part in field]
            prefix = place.prefix(fields["epoch"].decode())
            script = scripts.open_(layout_of(self.plan.layout))
            word, *answer = self._link.retry_once(script, prefix, "", *flat)
            if word == b"more":
                continue
            if word == b"type":
                raise StateError(
                    f"{place.name}: found a {answer[0].decode()}, expected a filter or nothing."
                    f" {place.other_key}"
                )
            with self._link.reading(answer):
                found = dict(zip(answer[1::2], answer[2::2], strict=True))
            header = read_header(place, found)
            check_plan(place, header.plan, self.plan)
            if self._register(header, place.prefix(header.epoch)):
                self.losses, self.forgotten = header.losses, header.forgotten
                # The epoch tells, even if the call that made the filter got no answer.
                return header.epoch == fields["epoch"].decode()

    def register_again(self) -> bool:
        """Register under a new id; return whether the filter is still there."""
        old = self.registration
        return old is not None and self._register(old.header, old.prefix)

    def rename(self) -> None:
        """Take a new id. The server does not know it, and says so to the next call."""
        self.renewed -= pace.LEASE
        if self.registration is not None:
            self.registration = replace(self.registration, worker=new_worker())

    def rest(self) -> None:
        """Give up the lease with the next look, so that others need not wait for this worker."""
        if self.registration is not None:
            self.registration = replace(self.registration, resting=True)

    def resume(self) -> bool:
        """Take the lease again after :meth:`rest`; return whether that worked.

        It fails if another worker has cleared the filter in the meantime.
        """
        old = self.registration
        if old is None or not old.resting:
            return old is not None
        answer = self._link.retry_once(*self._renewal(old, take=True))
        well: bool = answer[0] == b"ok"
        self.registration = replace(old, resting=False) if well else None
        return well

    def resume_later(self) -> None:
        """Let the next renewal take the lease again after :meth:`rest`."""
        if self.registration is not None:
            self.registration = replace(self.registration, resting=False)

    def renew(self, now: Registration) -> bytes:
        """Renew the lease; return the word that the script answers. The heartbeat calls this."""
        began = time.monotonic()
        word, *told = self._link.run(*self._renewal(now, take=not now.resting))
        if word == b"ok":
            with self._link.reading(told):
                server, self.forgotten = float(told[0]), int(told[1])
            self.renewed = time.monotonic()
            self._bury(now, began, server)
        return bytes(word)

    def look(self, watch: Watch) -> bool:
        """Look at the other workers; return whether the filter is still there."""
        now = self.registration
        if now is None:
            return False
        records = self._look(now, watch)
        if records is None:
            return False
        watch.look(*records)
        return True

    def clear(self, *, stay: bool) -> bool:
        """Delete the filter, unless another worker is registered and has not given up its lease.

        :param stay: whether to make an empty filter instead, and to register in it.
        :return: whether this worker has deleted it. If it was gone, :attr:`registration` is None.
        """
        now, place = self.registration, self._link.place
        if now is None:
            return False
        fields = new_fields(self.plan, "") if stay else {}
        answer = [b"more"]
        while answer[0] == b"more":
            answer = self._link.retry_once(
                scripts.CLEAR,
                now.prefix,
                now.header.signature,
                now.worker,
                pace.LEASE,
                now.header.layout.blocks_per_key,
                *(part for field in fields.items() for part in field),
            )
        if answer[0] == b"used":
            return False
        cleared: bool = answer[0] == b"ok"
        self.registration = None
        if cleared and stay:
            found = {name.encode(): value for name, value in fields.items()}
            header = read_header(place, found)
            prefix = place.prefix(header.epoch)
            self.registration = Registration(header, prefix, now.worker, others=False)
            self.losses = self.forgotten = 0
        return cleared

    def leave(self) -> None:
        """Take the worker off the register."""
        now = self.registration
        if now is not None:
            self._link.retry_once(scripts.LEAVE, now.prefix, now.header.signature, now.worker)
            self.registration = None

    def delete_segments(self, lost: Header) -> None:
        """Delete what is left of a filter whose header is gone. Never raises.

        Other workers may have added slices that this one does not know. So it also deletes the
        slices that the filter would have got next, until there is one without segments.
        """
        place = self._link.place
        prefix = place.prefix(lost.epoch)
        slices = list(lost.slices)
        try:
            with Within(_CALLS * place.timeout):
                for place_ in count():
                    number = slices[0].number + place_
                    if place_ == len(slices):
                        spec = lost.next_slice(slices)
                        slices.append(replace(slices[-1], **asdict(spec), number=number))
                    start = f"{prefix}{number}."
                    deleted = self._delete_slice(start, lost.layout, slices[place_])
                    if not deleted and place_ >= len(lost.slices):
                        break
                place.client.unlink(f"{prefix}again")
        except FAULTS as error:
            logger.warning(
                "%(where)s: the rest of a lost filter could not be deleted (%(error)s). The names"
                " of its keys begin with %(prefix)s.",
                {"where": place.name, "error": error, "prefix": prefix},
            )

    def _delete_slice(self, start: str, layout: Layout, spec: SliceSpec) -> int:
        """Delete what is left of the keys of one slice; return how many that were."""
        names = (f"{start}{end}" for end in chain(["ages"], range(key_count(layout, spec))))
        deleted = 0
        while batch := list(islice(names, keys_at_once(layout))):
            deleted += int(self._link.place.client.unlink(*batch))
        return deleted

    def _register(self, header: Header, prefix: str) -> bool:
        worker = new_worker()
        began = time.monotonic()
        try:
            script = scripts.join(header.layout)
            answer = self._link.retry_once(script, prefix, header.signature, worker, pace.LEASE)
        except FAULTS:
            with suppress(*FAULTS):  # it may be registered
                self._link.run(scripts.LEAVE, prefix, header.signature, worker)
            raise
        if answer[0] != b"ok":
            return False
        with self._link.reading(answer):
            told = read_look(began, answer)
        others = bool(told[-1])
        self.registration = Registration(header, prefix, worker, others)
        watch = Watch()
        watch.look(*told)
        self._newcomers = watch if others else None
        return True

    def _renewal(self, now: Registration, *, take: bool) -> tuple[Any, ...]:
        signature = now.header.signature
        return scripts.RENEW, now.prefix, signature, now.worker, pace.LEASE, int(take)

    def _look(self, now: Registration, watch: Watch) -> Look | None:
        """Read the records of the other workers, and remove those that the watch found dead."""
        began = time.monotonic()
        dead = [part for pair in watch.silent().items() for part in pair]
        answer = self._link.retry_once(
            scripts.LOOK, now.prefix, now.header.signature, now.worker, int(now.resting), *dead
        )
        with self._link.reading(answer):
            return read_look(began, answer) if answer[0] == b"ok" else None

    def _bury(self, now: Registration, began: float, server: float) -> None:
        """Remove the records of workers that were dead when this one came.

        Otherwise these records would stay for ever.
        """
        watch = self._newcomers
        if watch is None or now.resting:
            return
        watch.note(began, time.monotonic(), server)
        if watch.well_for >= pace.LEASE:
            self._look(now, watch)
            if self._newcomers is watch:
                self._newcomers = None


Look = tuple[float, float, float, dict[bytes, bytes]]
"""When the server was asked, when it answered, the server's time, and the others' records."""


def read_look(began: float, answer: list[bytes]) -> Look:
    """Return what the script has told of the others, for :meth:`Watch.look`."""
    _, server, *pairs = answer
    records = dict(zip(pairs[::2], pairs[1::2], strict=True))
    return began, time.monotonic(), float(server), records


def new_worker() -> str:
    """Return a name for a worker that no other one has."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"
