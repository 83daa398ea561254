"""The Lua scripts: shipped, explained, and understood by a server for every size of probe."""

import re
from importlib.resources import files
from itertools import product
from pathlib import Path

import pytest
from support.localredis import LocalRedis

from scrapy_bloom.core.sizing import MAX_HASHES
from scrapy_bloom.redis import scripts
from scrapy_bloom.redis.layout import layout_of
from scrapy_bloom.registry import LAYOUTS

FOLDER = Path(__file__).parents[1] / "scrapy_bloom" / "redis" / "lua"
SCRIPTS = sorted(path.name for path in FOLDER.glob("[a-z]*.lua"))


def test_every_script_of_the_checkout_is_installed():
    installed = files("scrapy_bloom.redis") / "lua"
    for path in FOLDER.iterdir():
        assert (installed / path.name).read_text("utf-8") == path.read_text("utf-8")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_begins_with_its_keys_arguments_and_answers(name):
    lines = (FOLDER / name).read_text("utf-8").splitlines()
    code = next(i for i, line in enumerate(lines) if not line.startswith("--"))
    head, body = "\n".join(lines[:code]), "\n".join(lines[code:])
    for word in ("KEYS[1]", "KEYS[2]", "ARGV[1]", "\n-- Answers "):
        assert word in head
    for argument in re.findall(r"ARGV\[\d\]", body):
        assert argument in head


def all_scripts():
    """Every script, for every layout and number of positions."""
    fixed = [script for script in vars(scripts).values() if isinstance(script, scripts.Script)]
    assert len(fixed) > 10
    yield from fixed
    for layout in map(layout_of, LAYOUTS):
        yield scripts.open_(layout)
        yield scripts.join(layout)
        for make in (scripts.add, scripts.ask, scripts.offer, scripts.forget):
            for k in range(1, MAX_HASHES + 1):
                yield make(layout, k)
        for make in (scripts.add, scripts.offer):
            for dated, aged in product((False, True), repeat=2):
                yield make(layout, MAX_HASHES, dated=dated, aged=aged)


def test_a_server_compiles_the_scripts_for_every_number_of_positions():
    with LocalRedis() as server, server.client() as client:
        for script in all_scripts():
            assert client.script_load(script.source) == script.sha


def test_every_script_begins_with_the_line_that_dragonfly_wants():
    for script in all_scripts():
        assert script.source.startswith("--!df flags=allow-undeclared-keys\n")
