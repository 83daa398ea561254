"""How the requests of a download slot are spaced."""

from __future__ import annotations

from typing import Final, NamedTuple


class Pace(NamedTuple):
    """How the downloader spaces the requests of a slot.

    Attributes:
        delay: seconds between two requests.
        jitter: by how much each delay varies at random, as a share of it: 0.5 is from half to one
            and a half.
    """

    delay: float
    jitter: float


UNPACED: Final = Pace(0.0, 0.0)
