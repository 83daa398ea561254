"""Kills while hundreds of requests and three hosts wait: none is lost, none sent too early."""

import random
import threading
import time
from collections import defaultdict

import pytest
from support.kills import KILLS, kill_each
from support.sites import Pages

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.usefixtures("short_leases")]

PAGES = 300
HOSTS = 6
HOLD = 3
"""Seconds for which a host asks to be left alone."""

GRACE = 1.0
"""Seconds after which nothing is sent to it that was on its way, and after which a kill does not
undo that it has asked."""

EARLY = 0.05

ALSO = pytest.mark.redis, pytest.mark.kills
"""What only `make kills` has: in `make test` the simulation has workers that wait."""


class WaitingSite(dict):
    """A tree of pages. The links say on which host a page is, and for how long to wait for it.

    Some pages of three hosts ask to be left alone when they are first asked for.
    """

    def __init__(self, spread, seed):
        super().__init__(dict.fromkeys(["/", *(f"/{page}" for page in range(PAGES))], self.visit))
        dice = random.Random(seed)
        self.lock, self.delivered = threading.Lock(), 0
        self.delays = {page: dice.choice((0, dice.uniform(1, spread))) for page in range(1, PAGES)}
        self.links = defaultdict(list)
        for page in range(1, PAGES):
            self.links[dice.randrange(0, 1 + page // 10)].append(page)
        self.asked = defaultdict(list)  # page: when, and whether it was delivered
        self.holds = []  # page, when

    def visit(self, path, _cookie):
        page, now = int(path.partition("?")[0][1:] or 0), time.monotonic()
        with self.lock:
            busy = page % 20 == 4 and not self.asked[page]
            self.asked[page].append((now, not busy))
            self.delivered += not busy
            if busy:
                self.holds.append((page, now))
        if busy:
            return 503, {"Retry-After": str(HOLD)}
        return [
            f"/{child}?host={child % HOSTS}&wait={self.delays[child]:.2f}"
            for child in self.links[page]
        ]

    @property
    def missed(self):
        return {page for page in range(PAGES) if not any(done for _, done in self.asked[page])}

    def standing_holds(self, kills):
        """Return the holds that no kill has undone: each page, and when it asked."""
        return [
            (page, moment)
            for page, moment in self.holds
            if not any(moment <= kill <= moment + GRACE for kill in kills)
        ]

    def too_early(self, kills):
        """Yield the pages that were asked for before their time."""
        for parent, children in self.links.items():
            begun = min(now for now, done in self.asked[parent] if done)
            for child in children:
                if self.asked[child][0][0] < begun + self.delays[child] - EARLY:
                    yield child
        for page, moment in self.standing_holds(kills):
            if self.asked[page][1][0] < moment + HOLD - EARLY:
                yield page

    def sent_to_held(self, kills):
        """Return how many requests went to a host that was to be left alone."""
        return sum(
            moment + GRACE < now < moment + HOLD - EARLY
            for page, moment in self.standing_holds(kills)
            for other, visits in self.asked.items()
            if other % HOSTS == page % HOSTS
            for now, _ in visits
        )


@pytest.mark.parametrize(
    ("place", "queue"),
    [
        ("kept job", "DownloaderAwarePriorityQueue"),
        pytest.param("kept job", "ScrapyPriorityQueue", marks=pytest.mark.kills),
        pytest.param("shared", "DownloaderAwarePriorityQueue", marks=ALSO),
        pytest.param("shared", "ScrapyPriorityQueue", marks=ALSO),
    ],
    indirect=["place"],
)
def test_nothing_that_waits_is_lost_or_sent_too_early(project, place, queue):
    dice, victims, kills = random.Random(queue), [], []
    workers = 1 if "JOBDIR" in place else 3
    settings = {"SCHEDULER_PRIORITY_QUEUE": f"scrapy.pqueues.{queue}", "LOG_LEVEL": "INFO", **place}
    site = WaitingSite(3 + 2 * KILLS, queue)
    with Pages(site) as pages:

        def start():
            return project.crawl(pages, spider="late", keep=False, **settings)

        most = 2 * PAGES // (KILLS + 8)
        for victim in kill_each(site, start, KILLS, dice, workers=workers, most=most):
            assert "Traceback" not in victim.log
            victims.append(victim)
            kills.append(time.monotonic())
        for run in project.runs:
            if run not in victims:
                run.complete()
    assert site.missed == set()
    assert [*site.too_early(kills)] == []
    to_held = site.sent_to_held(kills)
    again = sum(map(len, site.asked.values())) - len(site.holds) - PAGES
    print(  # noqa: T201 - `make kills` shows it
        f"{queue}, {workers}: {len(kills)} kills, {len(site.holds)} holds, {again} again, {to_held}"
        f" late to a held host"
    )
    if KILLS > 1:  # a machine that runs other tests meanwhile is late
        assert to_held == 0
