"""A worker's place in one shard: it opens the filter, registers, keeps its lease, and leaves."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from scrapy_bloom.core.growth import SliceSpec, next_slice
from scrapy_bloom.errors import StateError
from scrapy_bloom.redis import scripts
from scrapy_bloom.redis.connection import FAULTS
from scrapy_bloom.redis.header import Header, Plan, check_plan, new_fields, read_header
from scrapy_bloom.redis.link import Link

logger = logging.getLogger(__name__)

LEASE: Final = 10
"""Seconds after its last sign of life that a worker counts as dead."""

_NAMES: Final = 1000  # in one command that deletes keys
_LOOK: Final = 0.2  # seconds between two looks at the leases of others


@dataclass(frozen=True)
class Registration:
    """A worker's entry in the register of one filter.

    It never changes: a new one takes its place, whole. So the heartbeat's thread, which reads it
    beside the crawl, never sees parts of two.

    Attributes:
        header: what the filter is, as it was found.
        prefix: what the names of its segments begin with.
        worker: the worker's id.
        dead: how many workers had stopped without a word when this one came.
        alive: how many others seemed to live then.
        resting: whether the lease was given up: the worker seems to be finishing.
    """

    header: Header
    prefix: str
    worker: str
    dead: int
    alive: int
    resting: bool = False


class Membership:
    """One worker in one shard.

    :param link: to the shard's server.
    :param plan: what the shard must be.

    Attributes:
        registration: the worker's entry; None before :meth:`open` and after :meth:`clear`.
        losses: how often segments were lost, as far as the worker knows.
    """

    def __init__(self, link: Link, plan: Plan) -> None:
        self.plan = plan
        self.registration: Registration | None = None
        self.losses = 0
        self._link = link

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
            word, *answer = self._link.run(scripts.OPEN, prefix, "", *flat)
            if word == b"type":
                raise StateError(
                    f"{place.name}: found a {answer[0].decode()}, expected a filter or nothing."
                    f" {place.other_key}"
                )
            made, *pairs = answer
            found = dict(zip(pairs[::2], pairs[1::2], strict=True))
            header = read_header(place, found)
            check_plan(place, header.plan, self.plan)
            if self._register(header, place.prefix(header.epoch)):
                self.losses = header.losses
                return bool(made)

    def register_again(self) -> bool:
        """Register under a new id; return whether the filter is still there."""
        old = self.registration
        return old is not None and self._register(old.header, old.prefix)

    def rename(self) -> None:
        """Take a new id that the server does not know; it will say so."""
        if self.registration is not None:
            self.registration = replace(self.registration, worker=_new_worker())

    def resume(self) -> bool:
        """Take the lease again after :meth:`clear` was refused; return whether that worked.

        False if the filter was cleared meanwhile, by the last worker to finish.
        """
        old = self.registration
        if old is None or not old.resting:
            return old is not None
        answer = self._link.retry_once(
            scripts.RENEW, old.prefix, old.header.signature, old.worker, LEASE
        )
        well: bool = answer[0] == b"ok"
        self.registration = replace(old, resting=False) if well else None
        return well

    def beat(self) -> bool:
        """Renew the lease; return whether all is well. Called by another thread."""
        now, breaker = self.registration, self._link.breaker
        if now is None or (now.resting and not breaker.tripped):
            return True
        try:
            self._link.run(scripts.RENEW, now.prefix, now.header.signature, now.worker, LEASE)
        except FAULTS:
            return False
        breaker.allow_try()
        return not breaker.tripped

    def in_use_by_others(self) -> bool:
        """Ask whether other workers use the filter.

        Takes about a second if there are any, and up to :data:`LEASE` if one was killed that
        recently: a live one is known by the renewal of its lease.
        """
        now = self.registration
        return now is not None and self._any_lease_renewed(scripts.LIVE, now)

    def clear(self) -> bool:
        """Give up the lease and delete the filter, unless other workers use it.

        Takes as long as :meth:`in_use_by_others`; returns whether the filter is gone.

        :raises BackendError: if the server cannot be used.
        """
        if self.registration is not None:
            self.registration = now = replace(self.registration, resting=True)
            if self._any_lease_renewed(scripts.CLEAR, now, scripts.SEGMENT_BLOCKS):
                return False
        self.registration = None
        return True

    def leave(self) -> None:
        """Take the worker off the register."""
        now = self.registration
        if now is not None:
            self._link.run(scripts.LEAVE, now.prefix, now.header.signature, now.worker)
            self.registration = None

    def delete_segments(self, lost: Header) -> None:
        """Delete what is left of a filter whose header is gone. Never raises.

        Other workers may have added slices to it: these are the ones that it would have got next.
        """
        place = self._link.place
        prefix = place.prefix(lost.epoch)
        plan = lost.plan
        slices = list(lost.slices)
        try:
            for number in count():
                if number == len(slices):
                    slices.append(next_slice(slices, plan.capacity, plan.error_rate, lost.hashes))
                deleted = self._delete_slice(prefix, number, slices[number])
                if not deleted and number >= len(lost.slices):
                    return
        except FAULTS as error:
            logger.warning(
                "%(where)s: what is left of a lost filter could not be deleted (%(error)s). The"
                " names of its keys begin with %(prefix)s.",
                {"where": place.name, "error": error, "prefix": prefix},
            )

    def _delete_slice(self, prefix: str, number: int, spec: SliceSpec) -> int:
        """Return how many segments there were."""
        names = [f"{prefix}{number}.{segment}" for segment in range(segment_count(spec))]
        batches = (names[i : i + _NAMES] for i in range(0, len(names), _NAMES))
        return sum(int(self._link.place.client.unlink(*batch)) for batch in batches)

    def _register(self, header: Header, prefix: str) -> bool:
        worker = _new_worker()
        answer = self._link.run(scripts.JOIN, prefix, header.signature, worker, LEASE)
        if answer[0] != b"ok":
            return False
        _, dead, alive = answer
        self.registration = Registration(header, prefix, worker, dead, alive)
        return True

    def _any_lease_renewed(
        self, script: scripts.Script, now: Registration, *arguments: object
    ) -> bool:
        """Run a script that tells leases of others until one was renewed or there are none."""
        first: dict[bytes, bytes] | None = None
        with self._link.place.explained():
            while True:
                word, *pairs = self._link.retry_once(
                    script, now.prefix, now.header.signature, now.worker, *arguments
                )
                ends = dict(zip(pairs[::2], pairs[1::2], strict=True))
                first = ends if first is None else first
                if word == b"other" or not ends:
                    return False
                if any(first.get(name) != end for name, end in ends.items()):
                    return True
                time.sleep(_LOOK)


def segment_count(spec: SliceSpec) -> int:
    """Return how many segments a slice has."""
    return -(-spec.blocks // scripts.SEGMENT_BLOCKS)


def _new_worker() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"
