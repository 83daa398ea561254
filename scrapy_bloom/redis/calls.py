"""The calls of one registered worker: each is numbered, and answered by a value.

The protocol. The script keeps the number and the answer of each worker's last call: the same number
again gets the same answer and marks nothing, a lower one gets none. So a call may be sent again
whenever its answer did not come.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from scrapy_bloom.core.growth import SliceSpec
from scrapy_bloom.redis import scripts
from scrapy_bloom.redis.connection import BROKEN, FAULTS
from scrapy_bloom.redis.counters import Counters
from scrapy_bloom.redis.header import StoredSlice, read_slices, write_slice
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.membership import Registration

_LOOK: Final = 1000
"""A look for lost segments in every so many calls finds those that no check needs."""

_GONE: Final = (b"other", b"stranger", b"stale")
_FULL: Final = (b"full", b"due")
_ANSWER: Final = re.compile(rb"(ok|full|due|broken) (\d+) ([01]) ([01]*)(?: (.*))?", re.DOTALL)
_DIGITS: Final = re.compile(rb"[01]*")


@dataclass(frozen=True)
class Growth:
    """The slice to add if all others are full.

    Attributes:
        after: the number that the slice gets; with another one none is added.
        spec: the slice.
    """

    after: int
    spec: SliceSpec


class Reply(NamedTuple):
    """What Redis said to a call.

    Attributes:
        verdicts: for each fingerprint, in order, whether it was there; fewer if the filter is full.
        losses: how often segments of the filter were lost so far.
        rolled_back: whether the server has gone back to a state before the worker's last call.
        slices: if the filter is full, the slices that it has; else empty.
        due: whether it is full because a generation is to begin.
        lasts: seconds until something is forgotten for its age; None if the answer does not tell.
        error: if an error ended the call, its text. Then the first fingerprint without a verdict
            may be marked.
    """

    verdicts: list[bool]
    losses: int
    rolled_back: bool
    slices: tuple[StoredSlice, ...] = ()
    error: str = ""
    due: bool = False
    lasts: float | None = None


class Gone(NamedTuple):
    """Redis did not answer the call because it does not know the filter, or not the worker.

    Attributes:
        filter: whether the filter itself is gone, or another one is in its place.
        ambiguous: whether the call may have been carried out before.
    """

    filter: bool
    ambiguous: bool = False


class Calls:
    """Makes the calls of one registration.

    :param link: to the server.
    :param registration: whose calls they are.
    :param counters: where round trips are counted.
    """

    __slots__ = (
        "_answered",
        "_counters",
        "_hash",
        "_link",
        "_number",
        "_registration",
    )

    def __init__(self, link: Link, registration: Registration, counters: Counters) -> None:
        header = registration.header
        self._link = link
        self._registration = registration
        self._counters = counters
        self._hash = header.layout.make_hash(header.secret, digests=header.plan.digests)
        self._number = self._answered = 0

    def add(
        self,
        fingerprints: Sequence[bytes],
        growth: Growth | None,
        *,
        wait: bool = True,
        max_age: float | None = None,
    ) -> Reply | Gone:
        """Add fingerprints in one numbered call, sent again if need be.

        If the connection fails, the call is sent again at once. If that fails too, it is sent when
        the server is back, for as long as the policy says.

        :param wait: whether to wait for the server, if the policy says so.
        :param max_age: the greatest age of the first one, in seconds; None for none.
        :raises BackendError: if no answer came. The call may have been carried out.
        """
        header = self._registration.header
        aged = max_age is not None
        script = scripts.add(header.layout, header.hashes, dated=header.dated, aged=aged)
        more = [] if max_age is None else [write_ages({1: max_age})]
        return self._call(script, fingerprints, growth, wait=wait, more=more, fill=aged)

    def forget(self, fingerprints: Sequence[bytes]) -> Reply | Gone:
        """Make fingerprints new once more in one numbered call; its verdicts tell which were there.

        :raises BackendError: if no answer came. The call may have been carried out.
        """
        header = self._registration.header
        script = scripts.forget(header.layout, header.hashes, dated=header.dated)
        return self._call(script, fingerprints, None, wait=True, more=fingerprints)

    def _call(
        self,
        script: scripts.Script,
        fingerprints: Sequence[bytes],
        growth: Growth | None,
        *,
        wait: bool,
        more: Sequence[bytes | str] = (),
        fill: bool = False,
    ) -> Reply | Gone:
        now, breaker = self._registration, self._link.breaker
        self._number += 1
        look = int(self._number % _LOOK == 0)
        known = growth.after if growth else "-"
        call = (
            now.worker,
            f"{self._number} {self._answered} {look} {known}",
            b"".join(map(self._hash, fingerprints)),
            *([write_slice(growth.spec)] if growth else [""] if fill else []),
            *more,
        )
        ambiguous = False
        while True:
            try:
                self._counters.round_trips += 1
                answer = self._link.run(script, now.prefix, now.header.signature, *call)
                reply = read_reply(answer, len(fingerprints))
                if reply is None:
                    raise self._link.garbled(answer)
                break
            except FAULTS as error:
                self._counters.ambiguous += 1
                at_once = not ambiguous and isinstance(error, BROKEN)
                ambiguous = True
                if at_once:
                    continue
                breaker.trip(self._link.place.explain(error))
                if not (wait and breaker.wait()):
                    raise breaker.error() from None
        if isinstance(reply, Gone):
            return reply._replace(ambiguous=ambiguous)
        self._answered = self._number
        return reply

    def contains(self, fingerprints: Sequence[bytes]) -> list[bool] | Gone:
        """Return for each fingerprint whether it is there. Changes nothing.

        :raises BackendError: if no answer came.
        """
        now = self._registration
        self._counters.round_trips += 1
        with self._link.tripping():
            answer = self._link.retry_once(
                scripts.ask(now.header.layout, now.header.hashes, dated=now.header.dated),
                now.prefix,
                now.header.signature,
                b"".join(map(self._hash, fingerprints)),
            )
            reply = _read_answer(answer, len(fingerprints))
            if reply is None:
                raise self._link.garbled(answer)
        return reply


def write_ages(ages: Mapping[int, float]) -> str:
    """Return greatest ages as the scripts want them.

    :param ages: the seconds, by the place of the item in the call, counted from 1.
    """
    return " ".join(f"{item}:{seconds!r}" for item, seconds in ages.items())


def read_reply(answer: object, count: int) -> Reply | Gone | None:
    """Return what the script ``add`` says of `count` fingerprints; None if it cannot say that."""
    if answer in _GONE:
        return Gone(filter=answer == b"other")
    found = _ANSWER.fullmatch(answer) if isinstance(answer, bytes) else None
    if found is None:
        return None
    word, losses, rolled_back, digits, rest = found.groups(b"")
    complete = len(digits) == count
    if complete != (word == b"ok") or len(digits) > count:
        return None
    text = rest.decode(errors="replace")
    try:
        slices = read_slices(text) if word in _FULL else ()
        lasts = float(text) if word == b"ok" and text else None
    except ValueError:
        return None
    return Reply(
        scripts.read_verdicts(digits),
        int(losses),
        rolled_back == b"1",
        slices,
        error=text or "an error" if word == b"broken" else "",
        due=word == b"due",
        lasts=lasts,
    )


def _read_answer(answer: object, count: int) -> list[bool] | Gone | None:
    """Return what the script ``ask`` says of `count` fingerprints; None if it cannot say that."""
    if answer == [b"other"]:
        return Gone(filter=True)
    digits = answer[-1] if isinstance(answer, list) else None
    found = _DIGITS.fullmatch(digits) if isinstance(digits, bytes) else None
    return scripts.read_verdicts(found[0]) if found and len(found[0]) == count else None
