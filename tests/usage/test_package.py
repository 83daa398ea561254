"""What is installed is what is tested, and costs nothing until it is used."""

import ast
import re
from pathlib import Path

import pytest
from support.processes import run_line

import scrapy_bloom

PACKAGE = Path(scrapy_bloom.__file__).parent
ROOT = Path(__file__).parents[2]


def test_what_is_installed_is_what_is_tested_and_has_every_file_of_the_package():
    """`make dist` asks it of the wheel."""
    found = run_line("import scrapy_bloom; print(scrapy_bloom.__file__)")
    assert found.stdout.strip() == scrapy_bloom.__file__, "first: pip install -e '.[test]'"

    def files(folder):
        paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        return {path for path in paths if path.suffix != ".pyc"}

    assert files(PACKAGE) == files(ROOT / "scrapy_bloom")
    assert {Path("py.typed"), Path("redis", "lua", "call.lua")} <= files(PACKAGE)


def test_the_floor_has_the_oldest_of_everything_that_is_asked_for():
    bound = re.compile(r"^([\w-]+)(?:>=|==)([\d.]+)", re.MULTILINE)
    floor = dict(bound.findall((ROOT / "tests" / "floor.txt").read_text()))
    assert floor.pop("twisted")  # scrapy asks for it
    project = (ROOT / "pyproject.toml").read_text()
    asked = project.partition("\ndependencies = [")[2].partition("\n# What the tests run with.")[0]
    assert floor == dict(re.findall(r"\"([\w-]+)>=([\d.]+)", asked))


def test_the_typed_user_has_tried_every_public_name():
    user = ast.parse((ROOT / "tests" / "typed" / "api.py").read_text())
    imports = [node for node in ast.walk(user) if isinstance(node, ast.ImportFrom)]
    (tried,) = (node.names for node in imports if node.module == "scrapy_bloom")
    assert {alias.name for alias in tried} == {*scrapy_bloom.__all__}


def command(*words):
    """Return a line that runs a command as Scrapy does."""
    return f"from scrapy.cmdline import execute; execute({['scrapy', 'bloom', *words]})"


@pytest.mark.parametrize(
    ("missing", "line", "needs"),
    [
        ("redis", "from scrapy_bloom import RedisFilter", "the packages redis and msgpack"),
        ("redis", command("info", "redis://localhost#a"), "the packages redis and msgpack"),
        ("rich", command("top", "job"), "the package rich"),
    ],
)
def test_what_is_not_installed_is_named_with_the_line_of_the_readme(missing, line, needs):
    run = run_line(f"import sys; sys.modules[{missing!r}] = None; {line}")
    assert (run.returncode, run.stdout) == (2 if "execute" in line else 1, "")
    advice = run.stderr.rstrip().rpartition(f" needs {needs}: ")[2]
    assert advice.startswith("pip install '")
    assert advice in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("line", "loaded", "spared"),
    [
        ("import scrapy_bloom", ["scrapy_bloom"], "scrapy bitarray mmh3 filelock"),
        (
            "from scrapy_bloom import CanonicalRequestFingerprinter",
            ["scrapy_bloom.canonical.steps"],
            "bitarray mmh3 filelock redis",
        ),
        (
            "from scrapy_bloom import LocalFilter",
            ["scrapy_bloom.filter.bloom"],
            "scrapy twisted w3lib redis filelock scrapy_bloom.canonical",
        ),
    ],
)
def test_an_import_loads_what_it_uses_and_no_more(line, loaded, spared):
    modules = {*run_line(f"import sys; {line}; print(*sys.modules)").stdout.split()}
    assert {*loaded} <= modules
    assert not {*spared.split()} & modules


def test_a_command_of_scrapys_loads_the_names_of_ours_only():
    run = run_line("import scrapy.commands, sys, scrapy_bloom.commands; print(*sys.modules)")
    ours = {name for name in run.stdout.split() if name.startswith("scrapy_bloom")}
    assert ours == {"scrapy_bloom", "scrapy_bloom._version", "scrapy_bloom.commands"}


def test_what_is_private_to_scrapy_stands_in_one_folder():
    private = re.compile(r"SLF001|\"_slot\"|^from scrapy\S* import .*\b_[a-z]", re.MULTILINE)
    found = {path for path in PACKAGE.rglob("*.py") if private.search(path.read_text())}
    assert found
    assert all(path.is_relative_to(PACKAGE / "crawl" / "scrapy") for path in found)
