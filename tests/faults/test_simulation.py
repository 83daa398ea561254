"""Whole crawls in virtual time: hours of faults in a second, each history from a seed.

A history that goes wrong is repeated by ``python -m support.simulation``, as the failing test says.
"""

import os
import re

import pytest
from support.processes import Run, environment
from support.simulation.sets import CONTROLS, LOCAL, LOCAL_CONTROLS, SHARED

HISTORIES = int(os.environ.get("HISTORIES", "1"))
"""Of each set; `make kills` asks for many."""

LOSES = re.compile(r"(lost|neither done nor stored:) \[\d|fetched too early|it never ends")
"""What is said of a history in which pages are lost or wait for ever; no other error is meant."""

AGAIN = "PYTHONPATH=.:tests python -m support.simulation redis://localhost/0"
"""Repeats one on a server, which is emptied; a name and a seed follow."""


def simulate(folder, server, *arguments):
    """Run histories; return the exit code, and what was printed."""
    run = Run(folder, ["support.simulation", server, *arguments], environment())
    code = run.end()
    return code, run.output + run.log


@pytest.mark.parametrize("name", SHARED)
def test_no_page_is_lost_in_any_history(server, tmp_path, name):
    code, said = simulate(tmp_path, server.url, name, 0, HISTORIES)
    assert code == 0, f"{said}To see one (the server is emptied): {AGAIN} '{name}' SEED"


@pytest.mark.kills
@pytest.mark.parametrize("name", CONTROLS)
def test_controls_lose(server, tmp_path, name):
    code, said = simulate(tmp_path, server.url, name, 0, 40)  # the first that loses is the last
    assert code == 1, said
    assert LOSES.search(said), said


@pytest.mark.parametrize("name", LOCAL)
def test_no_page_of_a_job_is_lost_in_any_history(tmp_path, name):
    code, said = simulate(tmp_path, "-", name, 0, HISTORIES)
    assert code == 0, f"{said}To see one: {AGAIN} '{name}' SEED"


@pytest.mark.kills
@pytest.mark.parametrize("name", LOCAL_CONTROLS)
def test_controls_of_a_job_lose(tmp_path, name):
    code, said = simulate(tmp_path, "-", name, 0, 40)  # the first that loses is the last
    assert code == 1, said
    assert LOSES.search(said), said


def test_a_seed_is_one_history(server, tmp_path):
    code, first = simulate(tmp_path, server.url, "all killed", 2)
    assert code == 0, first
    assert "finished" in first
    assert simulate(tmp_path, server.url, "all killed", 2) == (code, first)
