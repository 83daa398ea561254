"""Which of the other workers live: told by their records, and not by the time alone.

A lease that is over proves nothing. The server may have been frozen or without memory, so that no
lease could be renewed; its clock may have been moved. So whoever wants to know watches the others'
records for as long as a lease lasts, while the server answers and its clock goes at the pace of the
watcher's own. A live worker renews its lease once a second, and that changes its record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from scrapy_bloom.redis import pace

_MAX_DRIFT: Final = 0.5  # seconds by which the server's clock and ours may come apart

_RESTING: Final = b"-"


class Watch:
    """What was seen of the other workers in one shard.

    A record is what the scripts tell of a worker: the end of its lease, ``-`` if it gave it up, and
    the number of its last call.
    """

    __slots__ = ("_ended", "_lives", "_offset", "_seen", "_well_since")

    def __init__(self) -> None:
        self._seen: dict[bytes, tuple[bytes, float]] = {}  # record, and since when it is that
        self._lives = False
        self._offset = (0.0, 0.0)  # bounds for the server's clock less ours
        self._ended: float | None = None
        self._well_since = 0.0

    @property
    def lives(self) -> bool:
        """Whether a worker that has a lease has given a sign of life."""
        return self._lives

    @property
    def deserted(self) -> bool:
        """Whether no worker is registered but those that have given up their leases."""
        return all(record.startswith(_RESTING) for record, _ in self._seen.values())

    @property
    def well_for(self) -> float:
        """Seconds for which the server was seen to be well."""
        return 0.0 if self._ended is None else self._ended - self._well_since

    def others(self) -> set[bytes]:
        """Return the other workers that were there when somebody looked last."""
        return {*self._seen}

    def silent(self) -> dict[bytes, bytes]:
        """Return the workers, with their records, that gave no sign of life for a whole lease."""
        if self._ended is None:
            return {}
        return {
            name: record
            for name, (record, since) in self._seen.items()
            if self._ended - max(since, self._well_since) >= pace.LEASE
        }

    def note(self, began: float, ended: float, server: float) -> None:
        """Take down that the server has answered.

        :param began: when it was asked, on our monotonic clock.
        :param ended: when its answer was there.
        :param server: the time on its clock.
        """
        low, high = server - ended, server - began
        if (
            self._ended is None
            or ended - self._ended > pace.MAX_GAP
            or low > self._offset[1] + _MAX_DRIFT
            or high < self._offset[0] - _MAX_DRIFT
        ):
            self._well_since = ended
            self._offset = (low, high)
        self._ended = ended

    def look(
        self, began: float, ended: float, server: float, records: Mapping[bytes, bytes]
    ) -> None:
        """Take down what the server has told of the others; times as for :meth:`note`.

        :param records: the record of each other worker in the register.
        """
        first = self._ended is None
        self.note(began, ended, server)
        before, self._seen = self._seen, {}
        for name, record in records.items():
            old, since = before.get(name, (b"", ended))
            self._seen[name] = (record, since if record == old else ended)
            if not first and record != old and not record.startswith(_RESTING):
                self._lives = True


def wait_deserted(looks: Iterable[Callable[[Watch], bool]], stopped: Callable[[], bool]) -> bool:
    """Watch the other workers in all shards; return whether none of them lives.

    Takes about a second if one does, as long as a lease lasts if one was killed, and twice that at
    most: then nobody can tell, and the answer is False.

    :param looks: look at the others in a shard; each returns whether its filter is still there.
    :param stopped: whether to wait no longer.
    """
    watches = [(look, Watch()) for look in looks]
    deadline = time.monotonic() + 2 * pace.LEASE
    while True:
        watches = [(look, watch) for look, watch in watches if look(watch) and not watch.deserted]
        if not watches:
            return True
        if any(watch.lives for _, watch in watches):
            return False
        if time.monotonic() > deadline or stopped():
            return False
        time.sleep(pace.LOOK)
