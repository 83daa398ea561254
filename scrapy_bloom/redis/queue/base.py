"""What a queue that workers share takes and gives. Works without the client library.

A request is in one of these places at any time: it *waits* in the queue; it is *taken* by one
worker, until that worker acknowledges it or gives it back; it has *failed*, for anybody to look at.
The server marks and stores a request in one step. So where a page is called seen, somebody has
queued it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

COPYING: Final = "under way"
"""The note of a crawl that is being copied here, or of which a part was copied."""


class Entry(NamedTuple):
    """A request on its way into the queue.

    Attributes:
        body: the request as bytes. Empty for one that is *held*: it cannot be stored, so it stays
            with its worker, and only its mark is in Redis. A held request has a fingerprint.
        priority: the higher, the sooner it is taken.
        fingerprint: what is marked; None for a request that is not filtered.
        max_age: seconds after which its page is new again; None for never.
    """

    body: bytes
    priority: int
    fingerprint: bytes | None
    max_age: float | None = None


class Ticket(NamedTuple):
    """Stands for a request that this worker has taken or holds, until it is acknowledged.

    Attributes:
        shard: the number of its shard.
        id: its name in the shard. Also tells under which registration the worker got it.
    """

    shard: int
    id: bytes


class Taken(NamedTuple):
    """A request that this worker has taken off the queue.

    Attributes:
        ticket: to acknowledge it with.
        body: the request as bytes; never empty.
        priority: as it was pushed.
        fingerprint: its mark; None if it has none.
        deliveries: how often workers have died with it before.
    """

    ticket: Ticket
    body: bytes
    priority: int
    fingerprint: bytes | None
    deliveries: int


class Offered(NamedTuple):
    """What became of entries.

    Attributes:
        seen: for each entry, in order, whether its fingerprint was marked before. Those that were
            not are in the queue now, or held. False for entries without a fingerprint.
        tickets: the tickets of new entries without a body, by their index.
    """

    seen: Sequence[bool]
    tickets: Mapping[int, Ticket]


class State(NamedTuple):
    """What a queue holds, over all shards.

    Attributes:
        waiting: requests that nobody has taken.
        elsewhere: requests that other workers have taken or hold, dead workers among them.
        version: changes with every push, take and acknowledgement of any worker.
    """

    waiting: int
    elsewhere: int
    version: Hashable


class Form(NamedTuple):
    """What the workers of one queue must have in common.

    Attributes:
        order: "lifo" or "fifo", within one priority.
        codec: "pickle" or "marshal": what the bodies were written by.
    """

    order: Literal["lifo", "fifo"]
    codec: Literal["pickle", "marshal"]


class Queue(Protocol):
    """A filter and a queue that workers share.

    Methods that call the server raise :class:`BackendError` if it cannot be used. They try twice
    and do not wait for a server that is known to be out. They raise :class:`FilterLostError` if
    filter or queue have vanished. What has raised may be called again with the same arguments:
    nothing is lost or done twice by that. They are for one thread at a time; the others do not call
    the server and are for any thread.
    """

    def offer(self, entries: Sequence[Entry]) -> Offered:
        """Mark the entries, and push those that were new.

        Of entries with the same fingerprint the first one counts. If this raises, offer the same
        entries again before others: those that were pushed are then called new.
        """

    def take(self, count: int, done: Sequence[Ticket] = ()) -> list[Taken]:
        """Take at most so many requests, from each shard in turn; acknowledge those that are done.

        At most 500 come from one shard. If this raises, `done` is remembered and acknowledged by a
        later call.
        """

    def acknowledge(self, tickets: Sequence[Ticket]) -> None:
        """Note that requests are done, and that all they led to was offered before.

        Tickets that are not this worker's any more are passed over. If this raises, they are
        remembered.
        """

    def give_back(self, tickets: Sequence[Ticket]) -> None:
        """Put requests that were not started back to their old places, as if never taken.

        The marks of held ones are undone. If this raises, they are remembered.
        """

    def fail(self, tickets: Sequence[Ticket]) -> None:
        """Put requests aside, where nobody takes them. Their marks stay."""

    def look(self) -> State:
        """Ask all shards now. What is remembered is acknowledged with it."""

    def requeue_dead(self) -> int:
        """Put the requests of dead workers back, if there are any; return how many.

        Calls the server only if a worker gave no sign of life for a whole lease while the server
        was well: so it may be called about once a second.
        """

    def note_copy(self, note: str) -> None:
        """Note that a crawl is being copied here: :data:`COPYING`, or of what the copy was made."""

    def close(self) -> None:
        """Leave the queue, which puts back what this worker has taken. The filter stays open.

        Acknowledges what is remembered. Never raises: if the server is out, others put back what is
        left when the lease is over. A second call does nothing.
        """

    def state(self) -> State:
        """Return what the last answers said."""

    def numbers(self) -> Mapping[str, float]:
        """Return what this worker counted, by the names in :class:`counters.QueueCounters`."""

    def knows(self, fingerprint: bytes) -> bool:
        """Return whether this worker knows by itself that a fingerprint is marked."""

    @property
    def copied(self) -> frozenset[str]:
        """The notes of a copy that were there when the queue was opened; each part has its own."""

    @property
    def sure(self) -> bool:
        """Whether nobody else can have taken over what this worker has taken.

        False if the worker could not renew its lease for nearly as long as it lasts: process or
        server stood still, or the network was cut. Start nothing that was taken until it is True
        again; :meth:`holds` tells then what is left.
        """

    def holds(self, ticket: Ticket) -> bool:
        """Return whether a taken request is still this worker's.

        False for good after others took the worker for dead and put the request back. One that was
        not started yet must be dropped then; one that is under way is finished as usual.
        """
