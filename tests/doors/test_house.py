"""Imports go one way through the rooms of the package, as tests/support/house.py draws them."""

import ast
import re
from pathlib import Path

import pytest
from support import house

import scrapy_bloom
from scrapy_bloom import options, stats

TESTS = Path(__file__).parents[1]
MODULES = house.sources(Path(scrapy_bloom.__file__).parent)


@pytest.mark.parametrize("look", [house.homeless, house.arrows_up, house.forbidden, house.circles])
def test_the_house_stands(look):
    problems = look(MODULES)
    assert not problems, "\n".join(problems)


def planted(**modules):
    """Return a house in which these modules (a__b for a.b) have been put, and what one may find."""
    return MODULES | {
        f"{house.PACKAGE}.{name.replace('__', '.')}": (text, False)
        for name, text in modules.items()
    }


UP = "from scrapy_bloom.crawl.there import x"


@pytest.mark.parametrize(
    ("look", "modules", "told"),
    [
        pytest.param(
            house.arrows_up,
            {"settings": f"class A:\n  def b(self):\n    {UP}", "crawl__there": ""},
            "scrapy_bloom.settings, line 3: imports scrapy_bloom.crawl.there;"
            " 'crawl' stands above 'settings'",
            id="up, in a function, from the top folder",
        ),
        pytest.param(
            house.arrows_up,
            {
                "crawl__here": "if TYPE_CHECKING:\n    from scrapy_bloom.local.there import x",
                "local__there": "",
            },
            "scrapy_bloom.crawl.here, line 2: imports scrapy_bloom.local.there;"
            " 'local' stands above 'crawl'",
            id="up, for the type checker only",
        ),
        pytest.param(
            house.arrows_up,
            {"canonical__here": "from ..local import there", "local__there": ""},
            "scrapy_bloom.canonical.here, line 1: imports scrapy_bloom.local.there;"
            " 'local' stands above 'canonical'",
            id="up, by a relative import",
        ),
        pytest.param(
            house.arrows_up,
            {"filter__here": "load('scrapy_bloom.crawl.there:x')", "crawl__there": ""},
            "scrapy_bloom.filter.here, line 1: imports scrapy_bloom.crawl.there;"
            " 'crawl' stands above 'filter'",
            id="up, by a name in a string",
        ),
        pytest.param(
            house.arrows_up,
            {"redis__here": "from scrapy_bloom.local import there", "local__there": ""},
            "scrapy_bloom.redis.here, line 1: imports scrapy_bloom.local.there;"
            " 'redis' and 'local' do not import each other",
            id="between redis and local",
        ),
        pytest.param(
            house.forbidden,
            {"filter__here": "def a():\n    from scrapy_bloom.settings import Settings"},
            "scrapy_bloom.filter.here, line 2: imports scrapy_bloom.settings; 'filter' must not",
            id="down, but filter to settings",
        ),
        pytest.param(
            house.forbidden,
            {"canonical__here": "import os.path"},
            "scrapy_bloom.canonical.here, line 1: imports os.path; 'canonical' must not",
            id="canonical to I/O",
        ),
        pytest.param(
            house.forbidden,
            {"canonical__here": "\nx = open('rules.json').read()"},
            "scrapy_bloom.canonical.here, line 2: calls open(); 'canonical' must not",
            id="I/O without an import",
        ),
        pytest.param(
            house.circles,
            {
                "filter__one": "from scrapy_bloom.filter.two import x",
                "filter__two": "def a():\n    from scrapy_bloom.filter import three",
                "filter__three": "from scrapy_bloom.filter.one import y",
            },
            "a circle of files:\n"
            "    scrapy_bloom.filter.one, line 1: imports scrapy_bloom.filter.two\n"
            "    scrapy_bloom.filter.two, line 2: imports scrapy_bloom.filter.three\n"
            "    scrapy_bloom.filter.three, line 1: imports scrapy_bloom.filter.one",
            id="a circle of files",
        ),
        pytest.param(
            house.circles,
            {
                "commands__one": "from scrapy_bloom.addon.two import x",
                "addon__three": "from scrapy_bloom.commands import four",
                "addon__two": "",
                "commands__four": "",
            },
            "a circle of rooms:\n"
            "    scrapy_bloom.commands.one, line 1: imports scrapy_bloom.addon.two\n"
            "    scrapy_bloom.addon.three, line 1: imports scrapy_bloom.commands.four",
            id="a circle of folders, none of files",
        ),
        pytest.param(
            house.homeless,
            {"helpers__here": ""},
            "scrapy_bloom.helpers.here stands in no room: give 'helpers' a place in ROOMS",
            id="a room that nobody has placed",
        ),
    ],
)
def test_what_is_out_of_place_is_named(look, modules, told):
    (problem,) = look(planted(**modules))
    assert rotations(problem) >= {told}


def rotations(problem):
    """A circle has no beginning: return all ways to tell it."""
    head, *steps = problem.split("\n")
    return {"\n".join([head, *steps[at:], *steps[:at]]) for at in range(len(steps) or 1)}


def test_each_option_and_stat_stands_in_its_table_once():
    for kind, table in ((options.Option, options.OPTIONS), (stats.Stat, stats.STATS)):
        module = options if kind is options.Option else stats
        named = [one for one in vars(module).values() if isinstance(one, kind)]
        assert set(named) <= set(table)
    assert len({one.setting for one in options.OPTIONS}) == len(options.OPTIONS)
    assert len({one.key for one in stats.STATS}) == len(stats.STATS) <= 28


def test_keys_of_stats_are_written_in_their_table_only():
    keys = {one.key for one in stats.STATS}
    found = [
        f"{module}: {node.value}"
        for module, (text, _) in MODULES.items()
        if house.room(module) != "stats"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and node.value in keys
    ]
    assert not found


def private_reads(path):
    """Find where a file reads a private name of something that is not its own."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Attribute) or not re.match("_[a-z]", node.attr):
            continue
        owner = ast.unparse(node.value)
        if owner not in {"self", "cls", "os"}:  # os._exit has no other name
            yield f"{path.name}, line {node.lineno}: {owner}.{node.attr}"


def test_tests_look_at_the_outside():
    files = [*TESTS.rglob("*.py")]
    assert len(files) > 50
    found = [read for path in files for read in private_reads(path)]
    where = "support/internals.py is the place for what cannot be seen from outside"
    assert all(read.startswith("internals.py") for read in found), f"{found}: {where}"
    assert found
