"""Which histories there are: sets of faults, features of the site, and settings.

A control takes one guard out of the package. Pages must get lost without it, or the simulation
would not see that a guard is missing.
"""

from twisted.internet.defer import succeed

from scrapy_bloom.crawl import frontier
from scrapy_bloom.crawl.outcomes import Ended
from scrapy_bloom.crawl.scrapy.engine import Engine
from scrapy_bloom.local.backend import LocalBackend
from scrapy_bloom.redis.starting_over import StartRunner
from support.simulation.local import LocalWorld

ALL = {
    "wrong": 0.05,
    "fails": 0.1,
    "blocks": 0.05,
    "waits": 0.1,
    "ages": 0.1,
    "unstorable": 0.05,
    "redirects": 0.2,
    "busy": 0.02,
    "slow": 0.03,
    "bugs": 0.1,
}
MIX = {"kill": 2, "stop": 1, "join": 0.5, "freeze": 1, "back": 1, "flush": 0.3, "late": 2}
CLOCKS = {"set_back": 0.5, "set_ahead": 0.5, "speed": 0.5}

SHARED = {
    "nothing happens": {"features": {"fails": 0.1, "redirects": 0.2, "waits": 0.1, "slow": 0.03}},
    "idle workers": {"pages": 1, "answers": (600.0,), "loss": 0.0, "most_calls": 450},
    "kills": {
        "faults": {"kill": 3, "stop": 1, "join": 1, "freeze": 1, "late": 1},
        "features": ALL,
    },
    "all killed": {"faults": {"kill_all": 1, "kill": 1, "stop": 1}, "features": ALL},
    "roll-backs": {"faults": {"back": 2, "kill": 1, "late": 2, "freeze": 0.5}, "features": ALL},
    "split brain": {"faults": {"split": 2, "kill": 1, "late": 2, "cut": 1}, "features": ALL},
    "clocks": {"faults": {**CLOCKS, "kill": 0.5, "freeze": 0.5}, "features": ALL},
    "keys lost": {
        "faults": {"key": 2, "keys": 1, "late": 1, "full": 1, "flush": 0.3},
        "features": ALL,
        "whole": False,
    },
    "bodies lost": {
        "faults": {"bodies": 1, "kill": 1, "late": 2},
        "features": ALL,
        "whole": False,
    },
    "losses while one is taken for dead": {
        "faults": {"dead_before": 1, "dead_after": 1, "late": 1},
        "features": ALL,
        "rate": 0.1,
        "whole": False,
    },
    "everything": {
        "faults": {**MIX, **CLOCKS, "split": 1, "full": 0.5, "cut": 0.5, "key": 1, "keys": 0.3},
        "features": ALL,
        "whole": False,
    },
    "everything, with a pace": {
        "faults": {**MIX, **CLOCKS, "split": 1, "full": 0.5, "cut": 0.5, "key": 1},
        "features": ALL,
        "delay": 1.0,
        "whole": False,
    },
    "a pace, slow answers": {
        "features": {"fails": 0.1, "redirects": 0.1},
        "delay": 1.0,
        "gap": 0.95,
        "answers": (0.02, 0.1, 0.4, 1.0),
    },
    "a pace, late answers": {
        "features": {"fails": 0.1, "redirects": 0.1},
        "delay": 1.0,
        "gap": 0.95,
        "answers": (0.02, 0.1, 0.4, 1.0),
        "latencies": (1.0, 2.0),
    },
    "a pace, network faults": {
        "faults": {"cut": 1, "late": 3, "full": 1},
        "features": {"fails": 0.1, "redirects": 0.1},
        "delay": 1.0,
        "gap": 0.95,
        "answers": (0.02, 0.1, 0.4, 1.0),
        "rate": 0.15,
        "loss": 0.1,
    },
    "a pace, freezes": {
        "faults": {"freeze": 2, "kill": 1, "stop": 1, "join": 1},
        "features": {"fails": 0.1, "redirects": 0.1},
        "delay": 1.0,
        "gap": 0.95,
        "answers": (0.02, 0.1, 0.4, 1.0),
        "rate": 0.15,
    },
    "a pace, blocking callbacks": {
        "faults": {"kill": 0.1},
        "features": {"blocks": 0.2, "fails": 0.1},
        "delay": 1.0,
        "gap": 0.95,
        "answers": (0.02, 0.1, 0.4, 1.0),
    },
    "a window": {
        "faults": {**MIX, "split": 1, "set_back": 0.5},
        "features": ALL,
        "settings": {"BLOOM_WINDOW": "600"},
    },
    "unstorable requests": {
        "faults": {"kill": 2, "stop": 1, "freeze": 1, "back": 1, "flush": 0.3},
        "features": {"unstorable": 0.4, "redirects": 0.1, "wrong": 0.1},
    },
    "forgotten pages": {
        "faults": {"kill": 2, "stop": 1, "freeze": 1, "back": 1, "split": 1, "late": 1},
        "features": {"wrong": 0.4, "redirects": 0.3},
    },
    "freezes": {
        "faults": {"freeze": 3, "kill": 0.3},
        "features": {"redirects": 0.1, "waits": 0.1},
        "delay": 1.0,
        "answers": (0.02, 0.1, 0.4, 1.0),
        "concurrent": 1,
        "pages": 40,
        "hosts": 5,
        "rate": 0.15,
        "calm": 100.0,
    },
    "outages": {"faults": {"cut": 3, "full": 1, "freeze": 0.5}, "features": ALL},
    "stops": {"faults": {"stop": 3, "join": 2, "full": 1, "cut": 1}, "features": ALL},
    "hosts left alone": {
        "faults": {"kill": 1, "freeze": 1, "back": 0.5},
        "features": {"busy": 0.15, "fails": 0.2, "waits": 0.2},
        "delay": 0.3,
    },
    "blocking callbacks": {
        "faults": {"kill": 1, "late": 1},
        "features": {"blocks": 0.3, "redirects": 0.1},
    },
}

_JOB = {"world": LocalWorld, "settings": {"RETRY_TIMES": 1}}
_FAILING = {**ALL, "blocks": 0, "dead": 0.05}
LOCAL = {
    name: {**_JOB, **options}
    for name, options in {
        "a job that is killed": {"faults": {"kill": 2, "stop": 1}, "features": _FAILING},
        "a job in outages": {
            "faults": {"outage": 2, "kill": 1, "stop": 1},
            "features": _FAILING,
        },
        "a job with unstorable requests": {
            "faults": {"kill": 2, "stop": 1, "outage": 1},
            "features": {"unstorable": 0.4, "redirects": 0.2, "wrong": 0.1, "bugs": 0.1},
        },
        "a job with forgotten pages": {
            "faults": {"kill": 2, "stop": 1, "outage": 1},
            "features": {"wrong": 0.4, "redirects": 0.4, "dead": 0.05},
        },
        "a job whose hosts are left alone": {
            "faults": {"kill": 1, "stop": 1},
            "features": {"busy": 0.15, "fails": 0.2, "waits": 0.2},
            "delay": 0.3,
        },
    }.items()
}

_LOST = "if last < answered or number < last or ends == 'dead' then return 'lost' end"
_VANISHED = """  if some then start_over() end
  walk()
  return some"""


_NO_RECORD = {"last = last or -1": "last = last or 0"}
_WHOLE = {"whole and '1' or '0'": "'1'"}
_ALONE = {"workers": 1, "concurrent": 1}  # so that most requests are in the server
CONTROLS = {
    "roll-backs without numbers": {
        "faults": {"back": 2, "late": 2},
        "without": {_LOST: ""},
    },
    "requests that vanish unnoticed": {
        **_ALONE,
        "faults": {"queue": 1},
        "whole": False,
        "without": {_VANISHED: ""},
    },
    "waiting requests that vanish unnoticed": {
        "faults": {"later": 1},
        "features": {"waits": 0.3},
        "whole": False,
        "without": {"call('ZCARD', queue) + call('ZCARD', later) < tonumber(waiting)": "false"},
    },
    "failed pages without their rows": {
        "faults": {"late": 2},
        "features": {"bugs": 0.3},
        "without": {
            "list(is_unparsed and unparsed or failed, key == '' and id or key, kind, packed)": ""
        },
    },
    "bodies that vanish unnoticed": {
        "faults": {"bodies": 2, "late": 2},
        "whole": False,
        "without": {"call('HLEN', bodies) < tonumber(stored)": "false"},
    },
    "requests without bodies that are handed out": {
        "faults": {"bodies": 2, "late": 2},
        "whole": False,
        "without": {"    if body then\n": "    if true then\n"},
    },
    "failed requests that vanish unnoticed": {
        "faults": {"failed": 2, "late": 2},
        "features": {"bugs": 0.3},
        "whole": False,
        "without": {"call('HLEN', failed) < tonumber(failures)": "false"},
    },
    "a loss before the new name of a worker that was taken for dead": {
        **_ALONE,
        "faults": {"dead_before": 1},
        "rate": 0.1,
        "whole": False,
        "without": {**_WHOLE, **_NO_RECORD},
    },
    "a loss between the new name and the first call": {
        **_ALONE,
        "faults": {"dead_after": 1},
        "rate": 0.1,
        "whole": False,
        "without": _NO_RECORD,
    },
    "flushes without start()": {
        **_ALONE,
        "faults": {"flush": 1},
        "calm": 4.0,  # a worker that comes after it has ended would run start()
        "patches": [(StartRunner, "run", lambda _: succeed(None))],
    },
    "requests that do not wait": {
        "faults": {"kill": 1},
        "features": {"waits": 0.3},
        "patches": [(frontier, "pop_due", lambda *_: 0.0)],
    },
    "pages that are done once they are sent": {
        "faults": {"kill": 1},
        "patches": [(Engine, "has", lambda *_: False)],
    },
}
LOCAL_CONTROLS = {
    "a job whose failed pages are done": {
        **LOCAL["a job in outages"],
        "patches": [(LocalBackend, "fail", lambda job, taken, *_: job.release(taken, Ended.DONE))],
    },
    "a job whose pages are done once they are sent": {
        **LOCAL["a job that is killed"],
        "patches": [(Engine, "has", lambda *_: False)],
    },
    "a job whose requests in memory stay marked": {
        **LOCAL["a job with unstorable requests"],
        "patches": [(LocalBackend, "withhold", lambda *_, **__: None)],
    },
}
SETS = SHARED | LOCAL | CONTROLS | LOCAL_CONTROLS
