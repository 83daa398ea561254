"""A process in a simulation: an event loop of its own that takes single steps, and threads."""

import asyncio
import selectors
from asyncio import _set_running_loop
from contextlib import contextmanager, suppress
from functools import partial
from math import inf

from scrapy.crawler import Crawler

from support.simulation.clock import TIME, Clock


class _NeverWaits(selectors.SelectSelector):
    """Time passes elsewhere."""

    def select(self, timeout=None):  # noqa: ARG002
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self, process):
        super().__init__(_NeverWaits())
        self._process = process

    def time(self):
        return self._process.clock.monotonic()

    def step(self):
        """Run what is due."""
        self._thread_id = 1  # as while it runs
        try:
            self._run_once()
        finally:
            self._thread_id = None

    @property
    def next_time(self):
        """When there is something to run, by its own clock."""
        if self._ready:
            return -inf
        timers = (timer.when() for timer in self._scheduled if not timer.cancelled())
        return min(timers, default=inf)

    def call_soon_threadsafe(self, callback, *args, context=None):
        """Deliver what a thread of this process has found out."""
        self._process.deliver(partial(self.call_soon, callback, *args, context=context))


class Thread:
    """What the package starts instead of :class:`threading.Thread`."""

    world = None

    def __init__(self, *, target, **_):
        self._target = target
        self._process = self.world.running

    def start(self):
        self._process.begin_thread(self.join)

    def is_alive(self):
        return self._target is not None

    def join(self, timeout=None):  # noqa: ARG002
        target, self._target = self._target, None
        if target is not None:
            target()


class Process:
    """A process that crawls.

    Args:
        world: in which it runs.
        name: in what is printed.
        spider: a class.
        settings: of its crawl.

    Attributes:
        clock: its clocks.
        side: the server that it reaches, None for none.
        loss: when the server loses something: before it opens the key again, or after; or None.
        ended: when its crawl has ended, and for which `reason`.
        may_end: another reason for which it may.
    """

    def __init__(self, world, name, spider, settings):
        self.world, self.name = world, name
        self.clock = Clock(world.chance.uniform(0, 1000))
        self.loop = Loop(self)
        self.dead = False
        self.ended = self.reason = self.may_end = self.side = self.loss = None
        self._stands_until = self._blocked_until = self._late = 0.0
        with self.runs(loop=True):
            self.crawler = Crawler(spider, settings)
            self._task = self.loop.create_task(self._crawl())

    @contextmanager
    def runs(self, *, loop=False):
        """Be the process whose code runs, in its event loop or else in a thread."""
        before = self.world.running, TIME.clock
        self.world.running, TIME.clock = self, self.clock
        if loop:
            _set_running_loop(self.loop)
            asyncio.set_event_loop(self.loop)
        try:
            yield
        finally:
            if loop:
                _set_running_loop(None)
            self.world.running, TIME.clock = before

    async def _crawl(self):
        try:
            await self.crawler.crawl_async()
        finally:
            self.ended = TIME.now
            self.reason = self.crawler.stats.get_value("finish_reason")
            self.world.note("ended", self.name, self.reason)

    @property
    def alive(self):
        return not self.dead and self.ended is None

    @property
    def next_time(self):
        """When its event loop has something to do; infinite if never."""
        if not self.alive:
            return inf
        due = self.clock.moment(self.loop.next_time)
        return max(due, self._stands_until, self._blocked_until, TIME.now)

    def step(self):
        with self.runs(loop=True):
            self.loop.step()

    # Threads

    def begin_thread(self, do):
        """Call a function a moment later."""
        self.world.after(self.world.latency(), partial(self.in_thread, do))

    def in_thread(self, do):
        """Call a function as a thread does: the event loop may be blocked meanwhile."""
        if self.dead:
            return
        if self._stands_until > TIME.now:
            self.world.at(self._stands_until + 0.001, partial(self.in_thread, do))
            return
        self._late = 0.0
        with self.runs():
            do()

    def deliver(self, do):
        """Call a function of the event loop once the thread that runs now is through."""
        self.world.after(self.world.latency() + self._late, lambda: self.dead or do())

    def lose_time(self, seconds):
        self._late += seconds

    # What happens to it

    def kill(self):
        """End it at once: none of its code runs again."""
        self.dead = True

    def stop(self):
        with self.runs(loop=True):
            self._stopping = self.loop.create_task(self.crawler.stop_async())

    @property
    def may_stop(self):
        with suppress(RuntimeError):  # it may have none yet
            return self.crawler.crawling and self.crawler.engine.running
        return False

    def freeze(self, seconds):
        """Let none of its code run for a time, as SIGSTOP does, or what holds the GIL."""
        self._stands_until = TIME.now + seconds

    def block(self, seconds):
        """Let its event loop run nothing more for a time, but its threads."""
        self._blocked_until = TIME.now + seconds
