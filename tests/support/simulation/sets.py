"""Which histories there are: sets of faults, features of the site, and settings.

A control takes one guard out of the package. Pages must get lost without it, or the simulation
would not see that a guard is missing.
"""

import re
from functools import partial

from twisted.internet.defer import succeed

from scrapy_bloom.crawl import frontier
from scrapy_bloom.crawl.outcomes import Ended
from scrapy_bloom.crawl.redirects import FirstLinks
from scrapy_bloom.crawl.scrapy.engine import Engine
from scrapy_bloom.local.backend import LocalBackend
from scrapy_bloom.local.store import Store
from scrapy_bloom.redis.starting_over import StartRunner
from support.simulation.local import LocalWorld
from support.simulation.shared import SharedWorld

ALL = (
    "wrong 0.05, fails 0.1, blocks 0.05, waits 0.1, ages 0.1, unstorable 0.05, redirects 0.2, "
    "busy 0.02, slow 0.03, bugs 0.1"
)
MIX = "kill 2, stop 1, join 0.5, freeze 1, back 1, flush 0.3, late 2"
CLOCKS = "set_back 0.5, set_ahead 0.5, speed 0.5"
EVERYTHING = f"{MIX}, {CLOCKS}, split 1, full 0.5, cut 0.5, key 1"


def history(faults="", features=ALL, *, world=SharedWorld, **options):
    """Return a set; how often faults come, and what pages and links have, is as in "kill 3"."""

    def read(text):
        return {name: float(share) for name, share in re.findall(r"(\w+) ([\d.]+)", text)}

    return {"world": world, "faults": read(faults), "features": read(features), **options}


def pace(faults="", features="fails 0.1, redirects 0.1", **options):
    """Return a set with a delay, which must be kept at each host."""
    slow = {"delay": 1.0, "gap": 0.95, "answers": (0.02, 0.1, 0.4, 1.0)}
    return history(faults, features, **{**slow, **options})


_ELSEWHERE = "kill 2, stop 1, join 1, freeze 0.5", "walls 0.7, fails 0.1"
SHARED = {
    "nothing happens": history("", "fails 0.1, redirects 0.2, waits 0.1, slow 0.03"),
    "idle workers": history("", "", pages=1, answers=(600.0,), loss=0.0, most_calls=450),
    "all killed": history("kill_all 1, kill 1, stop 1"),
    "split brain": history("split 2, kill 1, late 2, cut 1"),
    "bodies lost": history("bodies 1, kill 1, late 2"),
    "losses while one is taken for dead": history("dead_before 1, dead_after 1, late 1", rate=0.1),
    "everything": history(f"{EVERYTHING}, keys 0.3"),
    "everything, with a pace": history(EVERYTHING, delay=1.0),
    "a pace, slow answers": pace(),
    "a pace, late answers": pace(latencies=(1.0, 2.0)),
    "a pace, network faults": pace("cut 1, late 3, full 1", rate=0.15, loss=0.1),
    "a pace, freezes": pace("freeze 2, kill 1, stop 1, join 1", rate=0.15),
    "a pace, blocking callbacks": pace("kill 0.1", "blocks 0.2, fails 0.1"),
    "a window": history(f"{MIX}, split 1, set_back 0.5", settings={"BLOOM_WINDOW": "600"}),
    "unstorable requests": history(
        "kill 2, stop 1, freeze 1, back 1, flush 0.3", "unstorable 0.4, redirects 0.1, wrong 0.1"
    ),
    "forgotten pages": history(
        "kill 2, stop 1, freeze 1, back 1, split 1, late 1", "wrong 0.4, redirects 0.3"
    ),
    "freezes": pace(
        "freeze 3, kill 0.3",
        "redirects 0.1, waits 0.1",
        gap=0.0,
        concurrent=1,
        pages=40,
        hosts=5,
        rate=0.15,
        calm=100.0,
    ),
    "redirects that lead elsewhere": history(*_ELSEWHERE, settings={"RETRY_TIMES": 1}),
    "hosts left alone": history(
        "kill 1, freeze 1, back 0.5", "busy 0.15, fails 0.2, waits 0.2", delay=0.3
    ),
    "blocking callbacks": history("kill 1, late 1", "blocks 0.3, redirects 0.1"),
}

_job = partial(history, world=LocalWorld, settings={"RETRY_TIMES": 1})
_FAILING = f"{ALL}, blocks 0, dead 0.05"
_KILLED = "kill 2, stop 1", _FAILING
_IN_OUTAGES = "outage 2, kill 1, stop 1", _FAILING
_UNSTORABLE = "kill 2, stop 1, outage 1", "unstorable 0.4, redirects 0.2, wrong 0.1, bugs 0.1"
_MOVED = "kill 2, stop 1, outage 2", "walls 0.7, fails 0.1"
_LINKED = "outage 2", "moves 0.3, fails 0.6, slow 0.6"
LOCAL = {
    "a job that is killed": _job(*_KILLED),
    "a job in outages": _job(*_IN_OUTAGES),
    "a job with unstorable requests": _job(*_UNSTORABLE),
    "a job with forgotten pages": _job(
        "kill 2, stop 1, outage 1", "wrong 0.4, redirects 0.4, dead 0.05"
    ),
    "a job whose redirects lead elsewhere": _job(*_MOVED),
    "a job whose redirects lead to pages that are linked": _job(*_LINKED, kills=0),
    "a job whose hosts are left alone": _job(
        "kill 1, stop 1", "busy 0.15, fails 0.2, waits 0.2", delay=0.3
    ),
}

_NUMBERS = "if last < answered or number < last or expires == 'dead' then return 'lost' end"
_VANISHED = """  if has_vanished then start_over() end
  walk()
  return has_vanished"""
_WAITING = "call('ZCARD', queue) + call('ZCARD', later) < tonumber(waiting)"
_LISTED = "list(is_unparsed and unparsed or failed, key, kind, packed)"
_LOOK = "      let_fail(key, value)\n"
_BODY = "    if body then\n"
_NO_RECORD = {"last = last or -1": "last = last or 0"}
_NO_RECORD_BEFORE = {"whole and '1' or '0'": "'1'", **_NO_RECORD}

_control = partial(history, features="")
_alone = partial(_control, workers=1, concurrent=1)  # so that most requests are in the server
CONTROLS = {
    "roll-backs without numbers": _control("back 2, late 2", without={_NUMBERS: ""}),
    "requests that vanish unnoticed": _alone("queue 1", without={_VANISHED: ""}),
    "waiting requests that vanish unnoticed": history(
        "later 1", "waits 0.3", without={_WAITING: "false"}
    ),
    "failed pages without their rows": history("late 2", "bugs 0.3", without={_LISTED: ""}),
    "bodies that vanish unnoticed": _control(
        "bodies 2, late 2", without={"call('HLEN', bodies) < tonumber(stored)": "false"}
    ),
    "requests without bodies that are handed out": _control(
        "bodies 2, late 2", without={_BODY: _BODY.replace("body", "true")}
    ),
    "failed requests that vanish unnoticed": history(
        *("failed 2, late 2", "bugs 0.3"),
        without={"call('HLEN', failed) < tonumber(failures)": "false"},
    ),
    "a loss before the new name of a worker that was taken for dead": _alone(
        "dead_before 1", rate=0.1, without=_NO_RECORD_BEFORE
    ),
    "a loss between the new name and the first call": _alone(
        "dead_after 1", rate=0.1, without=_NO_RECORD
    ),
    "flushes without start()": _alone(
        "flush 1",
        calm=4.0,  # a worker that comes after it has ended would run start()
        patches=[(StartRunner, "run", lambda _: succeed(None))],
    ),
    "redirects that lead to what has failed and is not looked for": history(
        *_ELSEWHERE, settings={"RETRY_TIMES": 1}, without={_LOOK: ""}
    ),
    "requests that do not wait": history(
        "kill 1", "waits 0.3", patches=[(frontier, "pop_due", lambda *_: 0.0)]
    ),
    "pages that are done once they are sent": _control(
        "kill 1", patches=[(Engine, "has", lambda *_: False)]
    ),
}
LOCAL_CONTROLS = {
    "a job whose failed pages are done": _job(
        *_IN_OUTAGES,
        patches=[(LocalBackend, "fail", lambda job, taken, *_: job.release(taken, Ended.DONE))],
    ),
    "a job whose pages are done once they are sent": _job(
        *_KILLED, patches=[(Engine, "has", lambda *_: False)]
    ),
    "a job that does not ask whether where redirects led has failed": _job(
        *_MOVED, patches=[(Store, "fail_redirected", lambda _: None)]
    ),
    "a job that drops links although redirects to their pages may fail": _job(
        *_LINKED, kills=0, patches=[(FirstLinks, "add", lambda *_: None)]
    ),
    "a job whose requests in memory stay marked": _job(
        *_UNSTORABLE, patches=[(LocalBackend, "withhold", lambda *_, **__: None)]
    ),
}
SETS = SHARED | LOCAL | CONTROLS | LOCAL_CONTROLS
