"""Counts of what one worker put into the shared queue and took from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class QueueCounters:
    """Counts of one worker since it began.

    Attributes:
        batches: calls that offered entries.
        offered: entries in them.
        pushed: of these, the ones that were new and went into the queue, or are held.
        taken: requests that it took.
        taken_over: of these, the ones that others put back because they took it for dead.
        requeued: requests of dead workers that it put back.
        failed: requests of dead workers that it put into the list of failed ones.
    """

    batches: int = 0
    offered: int = 0
    pushed: int = 0
    taken: int = 0
    taken_over: int = 0
    requeued: int = 0
    failed: int = 0
