"""The Lua scripts: shipped, explained, understood by a server."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "scrapy_bloom" / "redis" / "lua"
PARTS = ("_common", "bitmap", "sets")
SCRIPTS = sorted({path.stem for path in FOLDER.glob("*.lua")} - {*PARTS})


def test_every_script_of_the_checkout_is_installed():
    installed = files("scrapy_bloom.redis") / "lua"
    assert len(SCRIPTS) == 6
    for path in FOLDER.iterdir():
        assert (installed / path.name).read_text("utf-8") == path.read_text("utf-8")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_begins_with_its_arguments_and_answers(name):
    head, _, body = (FOLDER / f"{name}.lua").read_text("utf-8").partition("\nlocal ")
    assert all(line.startswith("--") for line in head.splitlines() if name != "open" and line)
    assert "\n-- Answers " in head
    for argument in re.findall(r"ARGV\[\d+\]", body):
        assert argument in head
