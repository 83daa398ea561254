"""How often a worker gives a sign of life, and after what silence others take it for dead.

All numbers are seconds. They are read when they are used: a test that waits for the end of a lease
makes all of them shorter.
"""

LEASE: float = 10
"""Without a sign of life for so long, a worker counts as dead."""

NOT_LATER: float = 1.0
"""So long before others may call it dead, a worker no longer trusts that they have not."""

BEAT: float = 1.0
"""Between two renewals of a worker's lease."""

BEAT_IN_OUTAGE: float = 0.25
"""The same while the server cannot be used."""

LOOK: float = 0.2
"""Between two looks at the records of the others."""

MAX_GAP: float = 3.0
"""Between two looks; after a longer one, nobody knows whether the server was well."""

WAIT: float = 30.0
"""For so long one outage may hold up a crawl that waits for its server."""
