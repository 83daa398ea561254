"""Begin again: whatever the server loses, no page is lost; with one rule less, some are."""

from __future__ import annotations

import pytest
from support.beginning import World

pytestmark = pytest.mark.usefixtures("server")

ALL = {"kill": 1, "back": 1, "flush": 0.3, "key": 1, "late": 2, "freeze": 1}
BACK = {"back": 2, "late": 2}
SETS = {
    "kills": {"faults": {"kill": 2, "late": 2}},
    "freezes": {"faults": {"freeze": 2, "kill": 1, "late": 2}},
    "roll-backs": {"faults": {"back": 2, "kill": 1, "late": 2}},
    "flushes": {"faults": {"flush": 1, "kill": 1, "late": 2}},
    "queue lost": {"faults": {"queue": 1, "late": 2}},
    "header lost": {"faults": {"header": 1, "late": 2}},
    "any key lost": {"faults": {"key": 2, "late": 2}},
    "all": {"faults": ALL},
    "all, sets": {"faults": ALL, "layout": "sets"},
    "all, retries": {"faults": ALL, "retries": 0.2},
    "all, held": {"faults": ALL, "held": 0.15},
    "shards, all back": {"faults": {"back": 2, "kill": 1, "late": 2}, "shards": 2},
    "shards, one back": {"faults": {"back_one": 2, "kill": 1, "late": 2}, "shards": 2},
    "shards, any key lost": {"faults": {"key": 2, "late": 2, "freeze": 1}, "shards": 2},
    "plain, freezes": {"faults": {"freeze": 3, "late": 2}, "plain": True},
    "plain, roll-backs": {"faults": {"back": 1, "freeze": 1, "late": 2}, "plain": True},
}


@pytest.mark.parametrize("name", SETS)
def test_nothing_is_lost(server, name):
    for seed in range(3):
        assert not World(server, seed, **SETS[name]).run(), f"seed {seed}"


def without(line):
    """Return what takes a line out of the scripts that have it."""

    def edit(text):
        return text.replace(line, "")

    edit.line = line
    return edit


NO_NUMBER = "if last < answered or number < last or lives == 'dead' then return {'lost'} end\n"
CONTROLS = {
    "control: roll-backs without numbers": {"faults": BACK, "edit": without(NO_NUMBER)},
    "control: flushes without start()": {"faults": {"flush": 1, "late": 2}, "again": False},
    "control: roll-backs without start()": {"faults": BACK, "again": False},
    "control: requests vanish unnoticed": {
        "faults": {"queue": 2, "late": 2},
        "edit": without("if some then start_over() end\n  return some"),
    },
    "control: shards, one back, the others stay": {
        "faults": {"back_one": 2, "late": 2},
        "shards": 2,
        "reset_all": False,
    },
    "control: held requests stay unique": {"faults": ALL, "held": 0.15, "keep_held": True},
    "control: plain, no doubt": {"faults": {"freeze": 3}, "plain": True, "doubt": False},
}
