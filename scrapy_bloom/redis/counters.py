"""Counts of a worker's calls to Redis, and of what it answered without a call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Counts of one worker since it began; :data:`stats.FROM_BACKEND` says what each one means."""

    round_trips: int = 0
    local: int = 0
    ambiguous: int = 0
    unknown: int = 0
    outages: int = 0
    waited: float = 0.0
    losses: int = 0
