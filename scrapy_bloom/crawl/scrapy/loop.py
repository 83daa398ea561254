"""The reactor or event loop: timers, threads beside it, and for how long it has been blocked."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from threading import Thread, get_ident
from types import FrameType
from typing import Any, TypeVar, cast

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

T = TypeVar("T")


def _reactor() -> Any:
    """Return the reactor, or None: importing it would install one."""
    return sys.modules.get("twisted.internet.reactor")


def call_later(seconds: float, do: Callable[[], object]) -> Any:
    """Call `do` after a delay, with or without a reactor; return an object with ``cancel()``."""
    reactor = _reactor()
    if reactor is None:
        return asyncio.get_running_loop().call_later(seconds, do)
    return reactor.callLater(seconds, do)


def pause(seconds: float) -> Deferred[None]:
    """Return a Deferred that fires after a delay."""
    done: Deferred[None] = Deferred()
    call_later(seconds, lambda: done.callback(None))
    return done


class Timer:
    """Calls a function once, at the earliest of the times that were set since the last call.

    After an hour it calls it in any case: some event loops take no time of weeks.

    Attributes:
        due: when it calls it, by ``time.monotonic()``; infinite if it is not set.
    """

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do
        self._handle: Any = None
        self.due = inf

    def call_within(self, seconds: float) -> None:
        """Call it after so many seconds; not at all if they are infinite."""
        self.call_by(time.monotonic() + seconds)

    def call_by(self, due: float) -> None:
        """Call it at a time, by ``time.monotonic()``; not at all if it is infinite."""
        if due < self.due:
            self.cancel()
            seconds = max(0.0, due - time.monotonic())
            self.due, self._handle = due, call_later(min(3600.0, seconds), self._fire)

    def cancel(self) -> None:
        """Do not call it."""
        if self._handle is not None:
            self._handle.cancel()
        self.due, self._handle = inf, None

    def _fire(self) -> None:
        self.due, self._handle = inf, None
        self._do()


def _loop_caller() -> Callable[..., object] | None:
    """Return what has the reactor or event loop call a function, from any thread.

    None if there is no reactor, and no loop is running.
    """
    reactor = _reactor()
    if reactor is not None:
        return cast("Callable[..., object]", reactor.callFromThread)
    with suppress(RuntimeError):
        return asyncio.get_running_loop().call_soon_threadsafe
    return None


class Pulse:
    """Tells another thread for how long the reactor or event loop has been blocked.

    Create it in the thread of the loop.
    """

    def __init__(self) -> None:
        self._call, self._thread = _loop_caller(), get_ident()
        self._asked: float | None = None  # when the loop was asked, until it answers

    def blocked(self) -> float:
        """Return for how many seconds the loop has not answered. Each call asks it again."""
        now = time.monotonic()
        if self._asked is None:
            if self._call is None:
                return 0.0
            self._asked = now
            with suppress(RuntimeError):  # the loop is closed
                self._call(self._answer)
        return now - (self._asked or now)

    def stack(self) -> list[FrameType]:
        """Return what the loop is doing now: functions, the innermost one first."""
        frame, stack = sys._current_frames().get(self._thread), []
        while frame is not None:
            stack.append(frame)
            frame = frame.f_back
        return stack

    def _answer(self) -> None:
        self._asked = None


def run_beside(function: Callable[[], T], *, here: bool = False) -> Deferred[T]:
    """Run a function in a thread while the reactor or event loop keeps running.

    The thread is a daemon: after a second Ctrl-C, the process does not wait for a server.

    :param here: whether it is quick and should rather run at once, in this thread.
    :returns: a Deferred that fires with the result. It also ran at once if neither is running.
    """
    done: Deferred[T] = Deferred()
    reactor, call_back = _reactor(), _loop_caller()
    if here or call_back is None or (reactor is not None and not reactor.running):
        done.callback(function())
        return done

    def run() -> None:
        result: Any
        try:
            result = function()
        except BaseException:  # raised where it is awaited
            result = Failure()  # type: ignore[no-untyped-call]
        with suppress(RuntimeError):  # the loop is closed
            call_back(done.callback, result)

    Thread(target=run, name="scrapy-bloom", daemon=True).start()
    return done
