"""One thread beside the crawl that talks to a server, one call after the other."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class Lane:
    """Makes calls that wait for a server, while the event loop goes on.

    To be made where the event loop or the reactor runs. The thread does not keep the process alive:
    a call that hangs ends with it.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._post = _poster()
        Thread(target=self._work, name="scrapy-bloom lane", daemon=True).start()

    def call(
        self,
        function: Callable[[], T],
        succeeded: Callable[[T], object],
        failed: Callable[[Exception], object],
    ) -> None:
        """Make a call in the thread; pass what came of it to one of the others in the loop."""

        def make() -> None:
            try:
                result = function()
            except Exception as error:  # noqa: BLE001 - whoever asked decides what becomes of it
                self._post(failed, error)
            else:
                self._post(succeeded, result)

        self._calls.put(make)

    def stop(self) -> None:
        """End the thread after the calls that it was given."""
        self._calls.put(None)

    def _work(self) -> None:
        while (make := self._calls.get()) is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits for the answer any more
                make()


def _poster() -> Callable[..., object]:
    """Return what calls a function in the event loop, from any thread."""
    reactor: Any = sys.modules.get("twisted.internet.reactor")  # to import it would install one
    if reactor is not None:
        post: Callable[..., object] = reactor.callFromThread
        return post
    return asyncio.get_running_loop().call_soon_threadsafe
