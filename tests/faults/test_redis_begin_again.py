"""Begin again: whatever the server loses, no page is lost; with one rule less, some are."""

from __future__ import annotations

import os

import pytest
from support.begin_again import NeverEndsError, World

pytestmark = pytest.mark.usefixtures("server")

SEEDS = int(os.environ.get("SEEDS", "1"))
"""Histories of each set; `make kills` asks for many."""

ALL = {"kill": 1, "back": 1, "flush": 0.3, "key": 1, "late": 2, "freeze": 1}
BACK = {"back": 2, "late": 2}
SETS = {
    "freezes": {"faults": {"freeze": 2, "kill": 1, "late": 2}},
    "roll-backs": {"faults": {"back": 2, "kill": 1, "late": 2}},
    "flushes": {"faults": {"flush": 1, "kill": 1, "late": 2}},
    "all, retries": {"faults": ALL, "retries": 0.2},
    "all": {"faults": ALL},
    "losses while one is taken for dead": {
        "faults": {"dead_before": 1, "dead_after": 1, "late": 1}
    },
    "any key lost": {"faults": {"key": 2, "late": 2, "freeze": 1}},
    "hosts": {"faults": ALL | {"clock": 1}, "hosts": 7},
    "hosts, retries": {"faults": ALL | {"clock": 1}, "hosts": 7, "retries": 0.2},
    "waits": {"faults": ALL | {"clock": 1}, "hosts": 7, "waits": 0.3, "retries": 0.2},
    "waits, one order": {"faults": ALL | {"clock": 1}, "waits": 0.3},
    "waits, any key lost": {"faults": {"key": 3, "late": 2, "kill": 1}, "hosts": 7, "waits": 0.3},
    "many hosts, any key lost": {"faults": {"key": 3, "late": 2, "kill": 1}, "hosts": 40},
}


@pytest.mark.parametrize("name", SETS)
def test_no_page_is_lost_in_any_order_of_faults(server, name):
    for seed in range(SEEDS):
        assert not World(server, seed, **SETS[name]).run(), f"seed {seed}"


LOST = "if last < answered or number < last or ends == 'dead' then return 'lost' end"
ANSWERED = """  digits, ids = call('HGET', header, 'a:' .. worker):match('^(%d*) (.*)$')
  write_worker(worker, number, now + lease, own_delay, well)
  return answer()"""
VANISHED = """  if some then start_over() end
  walk()
  return some"""
NO_RECORD = {"last = last or -1": "last = last or 0"}
WHOLE = {"whole and '1' or '0'": "'1'"}
CONTROLS = {
    "roll-backs without numbers": {"faults": BACK, "without": {LOST: "", ANSWERED: ""}},
    "flushes without start()": {"faults": {"flush": 1, "late": 2}, "again": False},
    "requests that vanish unnoticed": {
        "faults": {"queue": 2, "late": 2},
        "without": {VANISHED: ""},
    },
    "waiting requests that vanish unnoticed": {
        "faults": {"later": 2, "late": 2},
        "hosts": 7,
        "waits": 0.3,
        "without": {"call('ZCARD', queue) + call('ZCARD', later) < tonumber(waiting)": "false"},
    },
    "a loss before the new name of a worker that was taken for dead": {
        "faults": {"dead_before": 1},
        "without": {**WHOLE, **NO_RECORD},
    },
    "a loss between the new name and the first call": {
        "faults": {"dead_after": 1},
        "without": NO_RECORD,
    },
}


def loses(server, seed, **options):
    """Return whether pages were lost, or wait for ever."""
    try:
        return bool(World(server, seed, **options).run())
    except NeverEndsError:
        return True


@pytest.mark.parametrize("name", CONTROLS)
def test_pages_are_lost_without_each_guard(server, name):
    assert any(loses(server, seed, **CONTROLS[name]) for seed in range(8))
