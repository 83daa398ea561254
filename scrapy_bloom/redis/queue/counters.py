"""Counts of what one worker put into the shared queue and took from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class QueueCounters:
    """Counts of one worker since it began.

    Attributes:
        requeued: requests of dead workers that it put back.
        failed: requests of dead workers that it put into the list of failed ones.
    """

    requeued: int = 0
    failed: int = 0
