"""A history: processes that crawl a site, in steps whose order is left to chance."""

import gc
import heapq
import itertools
import logging
import random
import secrets
from math import inf

from scrapy.exceptions import DownloadTimeoutError

from support.internals import be_simulated
from support.simulation.clock import TIME, Clock
from support.simulation.process import Process, Thread
from support.simulation.site import BugError, Handler, Site, SiteSpider

_PATIENCE = 2_000.0
"""Seconds in which a crawl must end once nothing happens to it any more."""

_HOUR = 3600

_CLOCKS = {"set_ahead", "set_back", "speed", "split"}
"""Faults after which clocks differ."""

SETTINGS = {
    "ADDONS": {"scrapy_bloom.Addon": 500},
    "BLOOM_CAPACITY": 1000,
    "BOT_NAME": "simulated",
    "CONCURRENT_ITEMS": 2,
    "DOWNLOADER_MIDDLEWARES_BASE": {
        "scrapy.downloadermiddlewares.retry.RetryMiddleware": 550,
        "scrapy.downloadermiddlewares.redirect.RedirectMiddleware": 600,
    },
    "DOWNLOAD_HANDLERS": {"http": Handler, **dict.fromkeys(("https", "ftp", "file", "data", "s3"))},
    "EXTENSIONS_BASE": {
        f"scrapy.extensions.{name}": 0
        for name in ("corestats.CoreStats", "spiderstate.SpiderState")
    },
    "LOG_ENABLED": False,
    "RANDOMIZE_DOWNLOAD_DELAY": False,
    "RETRY_TIMES": 40,
    "TWISTED_REACTOR_ENABLED": False,
    "WARN_ON_GENERATOR_RETURN_VALUE": False,  # it parses the source of each callback
}


class World:
    """One history.

    A subclass says where its crawl is kept: `place` are settings, `stored()` is a context manager
    with what its account reads, `will_retry` says whether failed pages are to be fetched again, and
    `lost` which pages are lost at the end.

    Args:
        seed: of everything that is left to chance.
        **options: what is not as the class has it.

    Attributes:
        account: what checks now and then that nothing stored is lost; None if it may be.
        running: the process whose code runs, or None.
        faulty: whether faults still come.
        history: what has happened, each with its time.
        wrong: what must not have happened, beside lost pages.
    """

    process = Process
    workers, most = 3, 6  # at first, and at one time
    pages, hosts = 30, 3  # of the site
    features = ()  # of the site: shares of pages or links that have each
    answers = 0.1, 0.5, 2.0, 5.0  # seconds that one of the site may take
    latencies = 0.001, 0.005, 0.03, 0.3  # of calls beside the event loop
    faults = ()  # how often each kind comes, relative to the others; a `fault_…` does it
    rate = 0.4  # faults that come in a second
    calm = 40.0  # after so many seconds nothing happens any more
    delay = 0.0  # DOWNLOAD_DELAY
    gap = 0.0  # share of it that must be between any two requests to a host
    concurrent = 4  # CONCURRENT_REQUESTS
    settings = ()  # others

    def __init__(self, seed, **options):
        for name, value in options.items():
            assert hasattr(self, name), name
            setattr(self, name, value)
        self.chance = random.Random(seed)
        random.seed(seed)  # Scrapy's jitter
        secrets.token_bytes = self.chance.randbytes
        secrets.token_hex = lambda count: self.chance.randbytes(count).hex()
        TIME.now, TIME.clock = 0.0, Clock()
        Thread.world = self
        be_simulated(Thread)
        self.running, self.processes, self.history, self.wrong = None, [], [], []
        self._numbers, self._events, self._names = itertools.count(), [], itertools.count()
        self._changes, self.faulty = 0, bool(self.faults)
        self.site = Site(self)
        for _ in range(self.workers):
            self.spawn()
        if self.faulty:
            self.after(self.chance.expovariate(self.rate), self._next_fault)
            self.at(self.calm, self.calm_down)
        else:
            self.calm = 0.0

    # Processes

    def spawn(self):
        spider = type("Spider", (SiteSpider,), {"site": self.site})
        settings = {
            **SETTINGS,
            "CONCURRENT_REQUESTS": self.concurrent,
            "CONCURRENT_REQUESTS_PER_DOMAIN": self.concurrent,
            "DOWNLOAD_DELAY": self.delay,
            **self.place,
            **dict(self.settings),
        }
        process = self.process(self, f"W{next(self._names)}", spider, settings)
        self.note("started", process.name)
        self.processes.append(process)
        return process

    def spawn_later(self, seconds):
        """Start one in a while, unless there are enough."""

        def start():
            if len(self.alive) < self.most:
                self.spawn()

        self.after(seconds, start)

    @property
    def alive(self):
        return [process for process in self.processes if process.alive]

    def pick(self):
        """Return any live process whose code does not run just now, None if there is none."""
        others = [process for process in self.alive if process is not self.running]
        return self.chance.choice(others) if others else None

    # Time

    def at(self, moment, do):
        heapq.heappush(self._events, (moment, next(self._numbers), do))

    def after(self, seconds, do):
        self.at(TIME.now + seconds, do)

    def latency(self):
        return self.chance.choice(self.latencies)

    def note(self, *what):
        self.history.append((round(TIME.now, 3), *what))

    # Faults

    def _next_fault(self):
        self.maybe_fault(1.0)
        self.after(self.chance.expovariate(self.rate), self._next_fault)

    def maybe_fault(self, probability):
        """Let something happen now with some probability."""
        if self.faulty and self.chance.random() < probability:
            (kind,) = self.chance.choices([*self.faults], [*self.faults.values()])
            self.note("fault", kind)
            getattr(self, f"fault_{kind}")()

    def calm_down(self):
        self.faulty = False

    def fault_kill(self):
        if process := self.pick():
            process.kill()
            self.spawn_later(self.chance.choice((0.5, 5, 40)))

    def fault_stop(self):
        """Stop one cleanly, which sometimes is not given the time it needs."""
        process = self.pick()
        if process and process.may_stop:
            process.stop()
            if self.chance.random() < 0.3:
                self.after(self.chance.choice((0.1, 1, 5)), process.kill)
            self.spawn_later(self.chance.choice((0.5, 5, 40)))

    # The run

    def run(self):
        """Crawl; return the pages that are neither parsed nor stored as failed."""
        handler = _Log(self)
        logging.getLogger().addHandler(handler)
        gc.disable()
        try:
            while self._step():
                pass
        finally:
            gc.enable()
            logging.getLogger().removeHandler(handler)
            for process in self.processes:
                process.loop.close()
        self.check_end()
        return self.lost

    def changed(self):
        """Check the account now and then, when what is kept has changed."""
        self._changes += 1
        if self.account is not None and self._changes % 20 == 0:
            with self.stored() as store:
                self.account.check(store)

    def _step(self):
        """Let the next thing happen; return whether there is one."""
        if not (self.faulty or self.alive):
            # One that was stopped after that may have left something.
            last = max(self.processes, key=lambda each: each.ended or -1)
            if self.is_over(last):
                return False
            self.spawn()
        due = [(process.next_time, process) for process in self.alive]
        event = self._events[0][0] if self._events else inf
        moment = min([event, *(time for time, _ in due)])
        if moment > self.calm + _PATIENCE:
            self.wrong.append("it never ends")
            return False
        TIME.now = max(TIME.now, moment) + 1e-6
        now = [process for time, process in due if time <= TIME.now]
        if event <= TIME.now and (not now or self.chance.random() < 0.5):
            heapq.heappop(self._events)[2]()
        else:
            self.chance.choice(now).step()
        return True

    def is_over(self, last):
        """Return whether nothing is left to do for another process than the last that has ended.

        One that was frozen, and stopped after the others had finished, may have left something.
        What has failed comes back in a later run: if that is all, let hours pass.
        """
        if (last.ended or -1) < self.calm or last.reason != "finished":
            return False
        if not self.will_retry:
            return True
        TIME.now += 1.1 * _HOUR
        self.calm = TIME.now
        return False

    def check_end(self):
        for process in self.processes:
            if process.reason not in (None, "finished", "shutdown", process.may_end):
                self.wrong.append(f"{process.name} ended: {process.reason}")
        if (least := min(self.site.gaps, default=inf)) < self.gap * self.delay:
            self.wrong.append(f"two requests to a host within {least:.3f} s")
        if self.site.early and not _CLOCKS.intersection(self.faults):
            self.wrong.append(f"fetched too early: {self.site.early}")


class _Log(logging.Handler):
    """Writes warnings down, and errors that nobody expects."""

    def __init__(self, world):
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record):
        running, text = self._world.running, record.getMessage()
        self._world.note("logged", running and running.name, record.levelname, text[:300])
        if running and "Nothing has answered there for 30 s" in text:  # an outage while it opens
            running.may_end = "bloom_backend"
        error = record.exc_info and record.exc_info[1]
        if error is not None and not isinstance(error, (BugError, DownloadTimeoutError)):
            self._world.wrong.append(f"{record.name} logged an error: {error!r}")
