"""What a run does when the run before it did not end cleanly: one policy for every backend."""

from __future__ import annotations

from enum import Enum

from scrapy_bloom.errors import UncleanStopError
from scrapy_bloom.options import ON_UNCLEAN, OnUnclean


class Recovery(Enum):
    """How a run starts."""

    GO_BACK = "with the filter of the last clean stop"
    START_EMPTY = "with an empty filter"


def recover(killed: str, policy: OnUnclean, *, can_go_back: bool) -> Recovery:
    """Return how to start after a run that was killed.

    :param killed: what shows that it was, in words.
    :param policy: what the user chose.
    :param can_go_back: whether the filter of the last clean stop is still there.
    :raises UncleanStopError: if the policy is ``fail``.
    """
    if policy is OnUnclean.FAIL:
        ways = (
            "With 'rollback' it goes on from the last clean stop, with 'reset' it starts with an"
            " empty filter."
            if can_go_back
            else "With 'rollback' or 'reset' it starts with an empty filter."
        )
        raise UncleanStopError(
            f"{killed} {ON_UNCLEAN.setting} is 'fail', so this run does not start. {ways}"
        )
    if policy is OnUnclean.ROLLBACK and can_go_back:
        return Recovery.GO_BACK
    return Recovery.START_EMPTY
