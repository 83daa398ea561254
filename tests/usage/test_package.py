"""What is installed is what is tested, and costs nothing until it is used."""

import ast
import re
from pathlib import Path

from support.processes import run_line

import scrapy_bloom

PACKAGE = Path(scrapy_bloom.__file__).parent
SOURCES = Path(__file__).parents[2] / "scrapy_bloom"
PUBLIC = set(scrapy_bloom.__all__)


def test_processes_that_tests_start_import_what_the_tests_do():
    found = run_line("import scrapy_bloom; print(scrapy_bloom.__file__)")
    assert found.stdout.strip() == scrapy_bloom.__file__, "first: pip install -e '.[test]'"


def test_what_is_installed_has_every_file_of_the_package():
    """`make dist` asks it of the wheel."""

    def files(folder):
        paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        return {path for path in paths if path.suffix != ".pyc"}

    assert files(PACKAGE) == files(SOURCES)
    assert Path("py.typed") in files(PACKAGE)
    assert Path("redis", "lua", "call.lua") in files(PACKAGE)


def test_the_floor_has_the_oldest_of_everything_that_is_asked_for():
    tests = Path(__file__).parents[1]
    bound = re.compile(r"^([\w-]+)(?:>=|==)([\d.]+)", re.MULTILINE)
    floor = dict(bound.findall((tests / "floor.txt").read_text()))
    assert floor.pop("twisted")  # scrapy asks for it
    project = (tests.parent / "pyproject.toml").read_text()
    asked = project.partition("\ndependencies = [")[2].partition("\n# What the tests run with.")[0]
    assert floor == dict(re.findall(r"\"([\w-]+)>=([\d.]+)", asked))


def test_the_typed_user_has_tried_every_public_name():
    user = ast.parse((Path(__file__).parents[1] / "typed" / "api.py").read_text())
    tried = {
        alias.name
        for node in ast.walk(user)
        if isinstance(node, ast.ImportFrom) and node.module == "scrapy_bloom"
        for alias in node.names
    }
    assert tried == PUBLIC


def test_the_filter_in_redis_says_how_to_install_the_client_library():
    run = run_line("import sys; sys.modules['redis'] = None; from scrapy_bloom import RedisFilter")
    advice = run.stderr.rstrip().rpartition("needs the packages redis and msgpack: ")[2]
    assert f"# {advice};" in (Path(__file__).parents[2] / "README.md").read_text()


def test_an_import_loads_what_it_uses_and_no_more():
    run = run_line(
        "import sys, scrapy_bloom; print(*sys.modules);"
        "from scrapy_bloom import CanonicalRequestFingerprinter; print(*sys.modules)"
    )
    package, fingerprinter = (set(line.split()) for line in run.stdout.splitlines())
    assert "scrapy_bloom" in package
    assert not {"scrapy", "bitarray", "mmh3", "filelock"} & package
    assert "scrapy_bloom.canonical.steps" in fingerprinter
    assert not {"bitarray", "mmh3", "filelock", "redis"} & fingerprinter
    # With each command of Scrapy's, ours is imported.
    run = run_line("import scrapy.commands, sys, scrapy_bloom.commands; print(*sys.modules)")
    ours = {name for name in run.stdout.split() if name.startswith("scrapy_bloom")}
    assert ours == {"scrapy_bloom", "scrapy_bloom._version", "scrapy_bloom.commands"}


def test_what_is_private_to_scrapy_stands_in_one_folder():
    private = re.compile(r"SLF001|\"_slot\"|^from scrapy\S* import .*\b_[a-z]", re.MULTILINE)
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    found = {name for name in found if private.search((PACKAGE / name).read_text())}
    assert found
    assert all(name.startswith("crawl/scrapy/") for name in found)


def test_a_filter_without_a_crawl_loads_neither_scrapy_nor_what_urls_need():
    run = run_line("import sys; from scrapy_bloom import LocalFilter; print(*sys.modules)")
    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    assert "scrapy_bloom.filter.bloom" in run.stdout
    assert "scrapy_bloom.canonical" not in run.stdout
    assert not loaded & {"scrapy", "twisted", "w3lib", "redis", "filelock"}
