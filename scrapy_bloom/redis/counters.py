"""What went over the wire and what did not, counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Counts of one worker since it began.

    Attributes:
        round_trips: calls to Redis, repeated ones included.
        local: checks answered from the worker's own memory.
        ambiguous: calls that were sent and brought no answer.
        unknown: checks answered "new" because Redis could not be asked.
        replayed: fingerprints told to Redis later, after an outage or a loss.
        outages: times that Redis could not be used.
        waited: seconds that checks have waited for Redis in outages.
        losses: times that the filter, or a part of it, was found to have vanished.
    """

    round_trips: int = 0
    local: int = 0
    ambiguous: int = 0
    unknown: int = 0
    replayed: int = 0
    outages: int = 0
    waited: float = 0.0
    losses: int = 0
