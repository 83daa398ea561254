"""SIGKILL at any moment: what is found next is the old state or the new one, never a mixture."""

import json

import pytest
from support.processes import run_program

KILLS = 40


@pytest.mark.long
def test_sigkill_at_any_moment_leaves_the_old_state_or_the_new_one(tmp_path):
    result = run_program("kill_often", tmp_path, KILLS)
    assert result.returncode == 0, result.stderr
    hit = json.loads(result.stdout)
    after = hit.pop("after it")
    assert sum(hit.values()) >= KILLS
    assert all(count >= KILLS / 40 for count in hit.values()), (hit, after)
