"""How long work tells how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Told = Callable[[int], object]
"""Called with how much was done since it was called last."""


class Progress(Protocol):
    """Shows how far a piece of work is, to whoever waits for it."""

    def __call__(self, what: str, total: int | None, unit: str) -> AbstractContextManager[Told]:
        """Begin a piece of work, which ends with the ``with`` statement.

        :param what: what is done, in a few words.
        :param total: how much there is to do; None if that is not known.
        :param unit: what is counted: ``bytes`` or a word such as ``lines``.
        """


@contextmanager
def silent(what: str, total: int | None, unit: str) -> Iterator[Told]:  # noqa: ARG001 - says nothing
    """Show nothing."""
    yield lambda _: None
