"""Requests on their way into a shared queue, which wait until the server says if they are new."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from scrapy_bloom.redis.queue.base import Entry, Offered, Taken, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request

    from scrapy_bloom.canonical.fingerprint import Change
    from scrapy_bloom.frontier.under_way import Visit

BOUND: Final = 5_000
"""Requests in the buffer at which it counts as full, until half of them are gone."""

BATCH: Final = 500
"""Most requests in one call."""


@dataclass
class Offer:
    """A request that waits for its verdict.

    Attributes:
        request: the request.
        fingerprint: that of its page; None if it is not filtered.
        change: what canonicalization has changed in its URL.
        mark: what is asked about: the fingerprint or, if that was seen, a step in a chain of
            redirects; None if nothing is asked.
        step: whether it is a step.
        body: the request as bytes; empty if it cannot be stored.
        held: its visit then.
        number: counts the requests in the order in which they came, from 1.
        max_age: seconds after which its page is new again; None for never.
    """

    request: Request
    fingerprint: bytes | None = None
    change: Change | None = None
    mark: bytes | None = None
    step: bool = False
    body: bytes = b""
    held: Visit[Taken] | None = None
    number: int = 0
    max_age: float | None = None

    @property
    def entry(self) -> Entry:
        """What is sent."""
        age = None if self.step else self.max_age
        return Entry(self.body, self.request.priority, self.mark, age)


class Buffer:
    """Requests in the order in which they came, and the marks that they ask about.

    Attributes:
        last: the number of the last one that has come.
    """

    def __init__(self) -> None:
        self._offers: deque[Offer] = deque()
        self._asked: set[bytes] = set()
        self.last = 0

    def __len__(self) -> int:
        return len(self._offers)

    def __contains__(self, mark: object) -> bool:
        return mark in self._asked

    @property
    def settled(self) -> int:
        """The highest number up to which all have their verdict."""
        return self._offers[0].number - 1 if self._offers else self.last

    def add(self, offer: Offer) -> None:
        """Let a request wait."""
        self.last += 1
        offer.number = self.last
        self._offers.append(offer)
        self.claim(offer)

    def claim(self, offer: Offer) -> None:
        """Let nobody else ask what a request asks."""
        if offer.mark is not None:
            self._asked.add(offer.mark)

    def first(self, count: int) -> list[Offer]:
        """Return those that wait longest. They stay until they are removed."""
        return list(islice(self._offers, count))

    def remove(self, count: int) -> None:
        """Take out those that wait longest: they have their verdict."""
        for _ in range(count):
            mark = self._offers.popleft().mark
            if mark is not None:
                self._asked.discard(mark)

    def put_back(self, offers: Sequence[Offer]) -> None:
        """Let requests wait once more, in their old places: they have another question."""
        self._offers.extendleft(reversed(offers))


class Judge(Protocol):
    """Makes the fingerprints of a crawl and counts the verdicts on its requests."""

    @property
    def failed(self) -> Collection[bytes]:
        """Marks that are seen in this run, whatever anybody else knows of them."""

    def identify(self, request: Request) -> tuple[bytes, Change | None] | None:
        """Return the fingerprint, and what canonicalization has changed; None if that fails."""

    def max_age(self, request: Request) -> float | None:
        """Return the seconds after which the page of a request is new again; None for never."""

    def next_step(self, request: Request, fingerprint: bytes) -> bytes | None:
        """Return what to ask further about a redirected request; None if there is nothing."""

    def tell(
        self, request: Request, fingerprint: bytes, change: Change | None, *, seen: bool, step: bool
    ) -> None:
        """Count a verdict; `step` tells whether it is on what :meth:`next_step` returned."""

    def fail(self, request: Request, error: Exception) -> object:
        """Count and tell that a request could not be checked."""

    def forget_marks(self, marks: Sequence[bytes]) -> list[bool]:
        """Make marks new once more; return for each whether it was there. In any thread.

        :raises BloomError: if that cannot be done now.
        """


class Admitted(NamedTuple):
    """A request that was new.

    Attributes:
        offer: the request.
        ticket: its ticket, if it cannot be stored.
    """

    offer: Offer
    ticket: Ticket | None


class Admission:
    """Asks about requests in batches, and tells what came of them.

    What is in the buffer, the worker need not ask about again: the second of two equal requests is
    a duplicate at once.

    :param judge: makes the fingerprints and counts the verdicts.
    :param knows: returns whether this worker knows by itself that a fingerprint is marked.

    Attributes:
        full: whether so many requests wait that no more should be made.
    """

    def __init__(self, judge: Judge, knows: Callable[[bytes], bool]) -> None:
        self._judge = judge
        self._known = knows
        self._buffer = Buffer()
        self._asking: list[Offer] = []
        self._forgetting: Counter[bytes] = Counter()
        self.full = False

    def __len__(self) -> int:
        return len(self._buffer)

    @property
    def came(self) -> int:
        """How many requests have come so far."""
        return self._buffer.last

    @property
    def settled(self) -> int:
        """How many of them, from the first one on, have their verdict."""
        return self._buffer.settled

    def consider(self, request: Request) -> Offer | None:
        """Return what is to be asked about a request; None if it is known to be a duplicate."""
        offer = Offer(request)
        if not request.dont_filter and (identified := self._judge.identify(request)):
            offer.fingerprint, offer.change = identified
            offer.mark = offer.fingerprint
            offer.max_age = self._judge.max_age(request)
            if offer.max_age is None and self._knows(offer.mark) and not self._asks_further(offer):
                return None
        return offer

    def add(self, offer: Offer) -> None:
        """Ask about a request with one of the next batches."""
        self._buffer.add(offer)
        self.full = self.full or len(self._buffer) >= BOUND

    def batch(self) -> list[Offer]:
        """Return what to ask next. It stays the same until it is answered."""
        self._asking = self._asking or self._buffer.first(BATCH)
        return self._asking

    def answered(self, answer: Offered) -> tuple[list[Admitted], list[Offer]]:
        """Learn the answer to the batch; return what is in the queue now, and the duplicates."""
        offers, self._asking = self._asking, []
        self._buffer.remove(len(offers))
        admitted, dropped, again = [], [], []
        for index, (offer, seen) in enumerate(zip(offers, answer.seen, strict=True)):
            if not seen:
                self._tell_new(offer)
                admitted.append(Admitted(offer, answer.tickets.get(index)))
            elif self._asks_further(offer):
                again.append(offer)
            else:
                dropped.append(offer)
        self._buffer.put_back(again)
        self.full = self.full and len(self._buffer) > BOUND // 2
        return admitted, dropped

    def forget(self, marks: Iterable[bytes]) -> None:
        """Know nothing of marks until they are forgotten: a request for their page is asked about.

        One that waits here already may get its verdict before that, and one that comes now must
        not be taken for its repeat.
        """
        self._forgetting.update(marks)

    def forgot(self, marks: Iterable[bytes]) -> None:
        """Note that marks are forgotten, and that the queue knows nothing of them."""
        self._forgetting -= Counter(marks)

    def _knows(self, mark: bytes) -> bool:
        if mark in self._forgetting:
            return False
        return mark in self._buffer or mark in self._judge.failed or self._known(mark)

    def _asks_further(self, offer: Offer) -> bool:
        """Return whether a request that was seen asks something else; if not, it is a duplicate."""
        request, fingerprint = offer.request, offer.fingerprint
        assert fingerprint is not None  # noqa: S101 - it was seen
        step = None
        if not offer.step and "redirect_urls" in request.meta:
            try:
                step = self._judge.next_step(request, fingerprint)
            except Exception as error:  # noqa: BLE001 - raised, it would cost the page
                self._judge.fail(request, error)
                offer.fingerprint = offer.mark = None
                return True
        if step is None or self._knows(step):
            self._judge.tell(request, fingerprint, offer.change, seen=True, step=offer.step)
            return False
        offer.mark, offer.step = step, True
        self._buffer.claim(offer)
        return True

    def _tell_new(self, offer: Offer) -> None:
        if (fingerprint := offer.fingerprint) is not None:
            self._judge.tell(offer.request, fingerprint, offer.change, seen=False, step=offer.step)
