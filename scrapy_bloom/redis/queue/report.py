"""What the scripts tell about the queue in every answer."""

from __future__ import annotations

from typing import NamedTuple


class Report(NamedTuple):
    """The state of one shard's queue.

    Attributes:
        version: how often it was changed.
        waiting: requests that wait.
        taken: requests that workers have taken or hold.
        failed: requests that nobody takes any more.
        missing: how much has vanished so far: requests, or marks that were new once more.
        returned: how many requests workers have given back, or had when they died.
    """

    version: int
    waiting: int
    taken: int
    failed: int
    missing: int
    returned: int


def read_report(text: bytes) -> Report:
    """Return the report that a script has written.

    :raises ValueError: if it cannot have written that.
    """
    numbers = [int(word) for word in text.split(b" ")]
    if len(numbers) != len(Report._fields):
        raise ValueError(f"{len(numbers)} numbers")
    return Report(*numbers)
