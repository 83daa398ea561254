"""Imports go one way through the rooms of the package, as tests/support/house.py draws them."""

import ast
import re
from pathlib import Path

import pytest
from support import house

import scrapy_bloom

TESTS = Path(__file__).parent
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


UP = "from scrapy_bloom.session.there import x"


@pytest.mark.parametrize(
    ("look", "modules", "told"),
    [
        pytest.param(
            house.arrows_up,
            {"core__here": f"import re\n\n{UP}", "session__there": ""},
            "scrapy_bloom.core.here, line 3: imports scrapy_bloom.session.there;"
            " 'session' stands above 'core'",
            id="up, at the top of a file",
        ),
        pytest.param(
            house.arrows_up,
            {"settings": f"class A:\n  def b(self):\n    {UP}", "session__there": ""},
            "scrapy_bloom.settings, line 3: imports scrapy_bloom.session.there;"
            " 'session' stands above 'settings'",
            id="up, in a function, from the top folder",
        ),
        pytest.param(
            house.arrows_up,
            {"redis__here": f"if TYPE_CHECKING:\n    {UP}", "session__there": ""},
            "scrapy_bloom.redis.here, line 2: imports scrapy_bloom.session.there;"
            " 'session' stands above 'redis'",
            id="up, for the type checker only",
        ),
        pytest.param(
            house.arrows_up,
            {"storage__here": "import re, scrapy_bloom.backends.there as b", "backends__there": ""},
            "scrapy_bloom.storage.here, line 1: imports scrapy_bloom.backends.there;"
            " 'backends' stands above 'storage'",
            id="up, by its full name",
        ),
        pytest.param(
            house.arrows_up,
            {"canonical__here": "from ..storage import there", "storage__there": ""},
            "scrapy_bloom.canonical.here, line 1: imports scrapy_bloom.storage.there;"
            " 'storage' stands above 'canonical'",
            id="up, by a relative import",
        ),
        pytest.param(
            house.arrows_up,
            {"session__here": "from scrapy_bloom import BloomDupeFilter"},
            "scrapy_bloom.session.here, line 1: imports scrapy_bloom;"
            " 'scrapy_bloom' stands above 'session'",
            id="up, by a public name",
        ),
        pytest.param(
            house.arrows_up,
            {"core__here": "load('scrapy_bloom.session.there:x')", "session__there": ""},
            "scrapy_bloom.core.here, line 1: imports scrapy_bloom.session.there;"
            " 'session' stands above 'core'",
            id="up, by a name in a string",
        ),
        pytest.param(
            house.arrows_up,
            {"redis__here": "from scrapy_bloom.storage import there", "storage__there": ""},
            "scrapy_bloom.redis.here, line 1: imports scrapy_bloom.storage.there;"
            " 'redis' and 'storage' do not import each other",
            id="down, but between redis and storage",
        ),
        pytest.param(
            house.forbidden,
            {"canonical__here": "def a():\n    from scrapy_bloom.settings import Settings"},
            "scrapy_bloom.canonical.here, line 2: imports scrapy_bloom.settings;"
            " 'canonical' must not",
            id="down, but canonical to settings",
        ),
        pytest.param(
            house.forbidden,
            {"canonical__here": "from scrapy.crawler import Crawler"},
            "scrapy_bloom.canonical.here, line 1: imports scrapy.crawler.Crawler;"
            " 'canonical' must not",
            id="canonical to the crawler",
        ),
        pytest.param(
            house.forbidden,
            {"core__here": "from scrapy import Request"},
            "scrapy_bloom.core.here, line 1: imports scrapy.Request; 'core' must not",
            id="core to Scrapy",
        ),
        pytest.param(
            house.forbidden,
            {"core__here": "import os.path"},
            "scrapy_bloom.core.here, line 1: imports os.path; 'core' must not",
            id="core to I/O",
        ),
        pytest.param(
            house.forbidden,
            {"canonical__here": "\nx = open('rules.json').read()"},
            "scrapy_bloom.canonical.here, line 2: calls open(); 'canonical' must not",
            id="I/O without an import",
        ),
        pytest.param(
            house.forbidden,
            {"registry": "from scrapy_bloom.errors import BloomError"},
            "scrapy_bloom.registry, line 1: imports scrapy_bloom.errors; 'registry' must not",
            id="registry to anything",
        ),
        pytest.param(
            house.circles,
            {
                "core__one": "from scrapy_bloom.core.two import x",
                "core__two": "def a():\n    from scrapy_bloom.core import three",
                "core__three": "from scrapy_bloom.core.one import y",
            },
            "a circle of files:\n"
            "    scrapy_bloom.core.one, line 1: imports scrapy_bloom.core.two\n"
            "    scrapy_bloom.core.two, line 2: imports scrapy_bloom.core.three\n"
            "    scrapy_bloom.core.three, line 1: imports scrapy_bloom.core.one",
            id="a circle of files",
        ),
        pytest.param(
            house.circles,
            {
                "commands__one": "from scrapy_bloom.scheduler.two import x",
                "scheduler__three": "from scrapy_bloom.commands import four",
                "scheduler__two": "",
                "commands__four": "",
            },
            "a circle of rooms:\n"
            "    scrapy_bloom.commands.one, line 1: imports scrapy_bloom.scheduler.two\n"
            "    scrapy_bloom.scheduler.three, line 1: imports scrapy_bloom.commands.four",
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


def private_reads(path):
    """Find where a file reads a private name of something that is not its own."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Attribute) or not re.match("_[a-z]", node.attr):
            continue
        owner = ast.unparse(node.value)
        if owner not in {"self", "cls", "os"}:  # os._exit has no other name
            yield f"{path.name}, line {node.lineno}: {owner}.{node.attr}"


def test_tests_look_at_the_outside():
    files = [*TESTS.glob("*.py"), *(TESTS / "support").rglob("*.py")]
    assert len(files) > 50
    found = [read for path in files for read in private_reads(path)]
    where = "support/internals.py is the place for what cannot be seen from outside"
    assert all(read.startswith("internals.py") for read in found), f"{found}: {where}"
    assert found
