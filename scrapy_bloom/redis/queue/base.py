"""What a queue that workers share takes and gives. Works without the client library."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol


class Entry(NamedTuple):
    """A request on its way into the queue.

    Attributes:
        body: the request as bytes; empty if it cannot be stored, and only its mark is.
        priority: the higher, the sooner it is taken.
        fingerprint: what is marked; None for a request that is not filtered.
    """

    body: bytes
    priority: int
    fingerprint: bytes | None


class Ticket(NamedTuple):
    """Stands for a request that this worker has taken, until it is acknowledged.

    Attributes:
        shard: the number of its shard.
        id: its name in the shard.
    """

    shard: int
    id: bytes


class Taken(NamedTuple):
    """A request that this worker has taken off the queue.

    Attributes:
        ticket: to acknowledge it with.
        body: the request as bytes.
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
            not are in the queue now.
        tickets: the tickets of new entries without a body, by their index.
    """

    seen: Sequence[bool]
    tickets: Mapping[int, Ticket]


class State(NamedTuple):
    """What a queue holds, over all shards.

    Attributes:
        waiting: requests that nobody has taken.
        elsewhere: requests that other workers have taken and not acknowledged.
        version: changes with every push, take and acknowledgement of any worker.
    """

    waiting: int
    elsewhere: int
    version: Hashable


class Queue(Protocol):
    """A filter and a queue that workers share.

    Methods that call the server raise :class:`BackendError` if it cannot be used; to repeat them is
    safe. They raise :class:`FilterLostError` under the policy ``close``, if filter or queue have
    vanished. They are for one thread at a time; the others are for any.
    """

    def offer(self, entries: Sequence[Entry]) -> Offered:
        """Mark the entries, and push those that were new."""

    def take(self, count: int, done: Sequence[Ticket]) -> list[Taken]:
        """Take at most so many requests; acknowledge those that are done."""

    def acknowledge(self, tickets: Sequence[Ticket]) -> None:
        """Note that requests are done: nobody needs to do them again."""

    def give_back(self, tickets: Sequence[Ticket]) -> None:
        """Put requests back that were taken and not started; marks without a body are undone."""

    def fail(self, tickets: Sequence[Ticket]) -> None:
        """Put requests aside, where nobody takes them."""

    def look(self) -> State:
        """Ask all shards now."""

    def requeue_dead(self) -> int:
        """Put the requests of dead workers back, if there are any; return how many."""

    def close(self) -> None:
        """Leave the queue, which puts back what this worker has taken. The filter stays open."""

    def state(self) -> State:
        """Return what the last answers said."""

    def knows(self, fingerprint: bytes) -> bool:
        """Return whether this worker knows by itself that a fingerprint is marked."""

    def holds(self, ticket: Ticket) -> bool:
        """Return whether a taken request is this worker's for certain."""

    def finish(self, fingerprint: bytes) -> None:
        """Note that this worker has done a page: after a loss it may be marked again."""
