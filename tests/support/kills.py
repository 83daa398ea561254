"""Crawls that are killed again and again, and what is left of them at the end."""

import json
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from support.waiting import until

MOMENTS = (
    "scrapy_bloom.local.marks:Marks._sweep:after",
    "scrapy_bloom.local.store:Store._keep:before",
    "scrapy_bloom.local.marks:Marks.begin_pass:after",
    "scrapy_bloom.local.marks:Marks._write_pass:after",
    "scrapy_bloom.local.log:Log.checkpoint:before",
    "scrapy_bloom.local.log:Log.checkpoint:after",
)
"""Chosen moments of a crawl, without the number of the call."""

ONCE = (
    "scrapy_bloom.file:write:before",
    "scrapy_bloom.file:write:after",
    "scrapy_bloom.local.job:Job._check:before",
    "scrapy_bloom.local.job:Job._read_state:after",
    "scrapy_bloom.local.job:Job.begin:after",
)
"""Chosen moments while a run opens."""

CLOSING = (
    "scrapy_bloom.crawl.items:Items._close_pipelines:before",
    "scrapy_bloom.local.job:Job.close:before",
    "scrapy_bloom.local.store:Store.close:before",
    "scrapy_bloom.local.store:_compact:before",
    "scrapy_bloom.local.store:Store.close:after",
    "scrapy_bloom.local.job:Job.close:after",
)
"""Chosen moments while a run that was stopped closes."""

EXPECTED = (
    "a page that the spider cannot bear",
    "Error while removing request from slot",  # Scrapy's, if a callback downloads its own request
)
"""What the log of a run with tracebacks says."""


@dataclass
class Tally:
    """What a series has shown so far.

    Attributes:
        kills: runs that were killed.
        stops: runs that were stopped cleanly, on the way.
        kinds: how often each way of killing was met.
    """

    kills: int = 0
    stops: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    def count(self, kind):
        self.kinds[kind] = self.kinds.get(kind, 0) + 1


def series(project, site, kills, *, seed=0, stops=0.15, step=30, **crawl):
    """Kill a crawl of a site so often, stop it cleanly now and then, and let it end.

    :param stops: share of the runs that are stopped instead.
    :param step: pages that a run delivers before it is killed, on average.
    """
    dice = random.Random(seed)
    tally = Tally()
    crawl = {"SCHEDULER": "support.kill_points.Scheduler", "LOG_LEVEL": "INFO", **crawl}
    while tally.kills < kills:
        run = None
        if dice.random() < stops:
            run = _until_delivered(project, site, crawl, dice.randint(1, 2 * step))
            run.interrupt()
            kind = "stopped"
        elif dice.random() < 0.2:
            kind = dice.choice(CLOSING)
            dies = {"DIE": f"{kind}:1"}
            run = _until_delivered(project, site, crawl, dice.randint(1, 2 * step), dies)
            run.interrupt()
        elif dice.random() < 0.5:
            run = _until_delivered(project, site, crawl, dice.randint(1, 2 * step))
            run.kill()
            kind = "at any moment"
        else:
            kind = dice.choice(MOMENTS + ONCE)
            number = dice.randint(1, 5) if kind in MOMENTS else 1
            run = project.crawl(site, environment={"DIE": f"{kind}:{number}"}, **crawl)
            site.when(site.delivered + 4 * step, run.kill)  # it may never come to that
        code = run.end()
        assert "Traceback" not in run.log or any(text in run.log for text in EXPECTED), run.log
        if code == -9:
            tally.kills += 1
            tally.count(kind)
        elif kind == "stopped" or kind in CLOSING:
            tally.stops += 1
            assert run.reason in {"shutdown", "finished"}, run.log
        else:
            assert run.reason == "finished", run.log
            break  # over too soon
    run = project.crawl(site, **crawl)
    assert run.end() == 0, run.log
    assert run.reason == "finished", run.log
    return tally


def _until_delivered(project, site, crawl, pages, environment=None):
    enough = site.delivered + pages
    run = project.crawl(site, environment=environment, **crawl)
    until(lambda: site.delivered >= enough or run.ended)
    return run


def urls_in(path):
    """Return the URLs of a feed of JSON lines; a kill may have cut its last line."""
    return set(items_in(path))


def items_in(path):
    """Count the items of such a feed by their URL."""
    urls = Counter()
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):
            urls[json.loads(line)["url"]] += 1
    return urls
