"""What a worker does again and again, and how often: all periods, in seconds."""

from __future__ import annotations

from typing import Final

LEASE: float = 30.0
"""Without a heartbeat for so long, a worker counts as dead, if others have called for as long
without a gap: after the server has stood still, each gets another lease.

A callback that holds the GIL for 10 seconds must not make it look dead. Looked up on each use:
tests shorten it.
"""

BLOCKED: float = 600.0
"""A worker whose event loop has not turned for so long gives up its lease: a callback may never
return. Looked up on each use, too."""

TENDED: Final = 1.0
"""With one heartbeat a worker makes and frees keys for so long at most."""

UNCHANGED: float = 60.0
"""After so long it looks whether it should, although no call has reported a change."""

BEATS: Final = 15
"""How often in a lease a worker looks whether it should make a heartbeat."""

SILENT: Final = 3
"""It makes one after so many of these periods without a call."""

RETRY: Final = 0.25
"""Between calls, and between heartbeats, while the server does not answer."""

CALL: float = 60.0
"""Longest wait for the server in a try of a call that carries requests, beside the event loop. It
does not grow with repetitions, so it must do for the largest request over a slow link."""

FIRST_ANSWER: float = 30.0
"""A server that has not answered once in so long counts as a wrong address."""

WARN: Final = 60.0
"""Between two warnings of one outage."""

GATHER: Final = 0.05
"""Between calls while there is enough to fetch, so that they carry more."""

PATIENT: Final = 0.25
"""For so long a done page may wait for a call to be reported with, and anything that is sent while
all that waits has to wait for its turn."""

POLL: Final = 0.05
"""Between the first two looks at an empty queue. The time doubles with each look."""

ACTIVE_POLL: Final = 2.0
"""Between looks of an idle worker, at most, while others have something to do."""

SLOWEST_POLL: Final = 5.0
"""The same while nothing changes. Each look is its heartbeat, too."""
