"""Start requests no faster than the frontier takes them.

While the downloader is full, Scrapy reads ``Spider.start()`` in a loop without giving the event
loop a turn. A million start requests would all be in memory before the first one is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from collections.abc import Callable


class Gate:
    """Makes whoever reads start requests wait.

    :param is_shut: returns whether they are to wait now.
    """

    def __init__(self, is_shut: Callable[[], bool]) -> None:
        self._is_shut = is_shut
        self._waiting: list[Deferred[None]] = []
        self._ended = False

    def put_before(self, engine: Any) -> None:
        """Let the start requests of an engine pass here, if this Scrapy has them where we look."""
        start: Any = getattr(engine, "_start", None)
        if hasattr(start, "__aiter__"):
            engine._start = self._pass(start)  # noqa: SLF001 - it has no other name

    def open(self) -> None:
        """Let those go on that wait."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.called:
                each.callback(None)

    def end(self) -> None:
        """Let nothing pass any more."""
        self._ended = True
        self.open()

    async def _pass(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for each in start:
            yield each
            while self._is_shut() and not self._ended:
                passed: Deferred[None] = Deferred()
                self._waiting.append(passed)
                await maybe_deferred_to_future(passed)
            if self._ended:
                return
