"""What is installed is what is tested, and costs nothing until it is used."""

import ast
from pathlib import Path

from support.processes import run_line

import scrapy_bloom

PACKAGE = Path(scrapy_bloom.__file__).parent
SOURCES = Path(__file__).parents[2] / "scrapy_bloom"
PUBLIC = set(scrapy_bloom.__all__)
WITHOUT_REDIS = "import sys; sys.modules['redis'] = None; "


def test_the_tests_import_the_installed_wheel():
    assert "site-packages" in PACKAGE.parts, "install the package first: make tests does"
    # Processes that tests start import the same one.
    found = run_line("import scrapy_bloom; print(scrapy_bloom.__file__)")
    assert found.stdout.strip() == scrapy_bloom.__file__


def test_the_wheel_holds_every_file_of_the_package():
    def files(folder):
        paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        return {path for path in paths if path.suffix != ".pyc"}

    assert files(PACKAGE) == files(SOURCES)
    assert Path("py.typed") in files(PACKAGE)
    assert Path("redis", "lua", "call.lua") in files(PACKAGE)


def test_the_typed_user_has_tried_every_public_name():
    user = ast.parse((Path(__file__).parents[1] / "typed" / "api.py").read_text())
    tried = {
        alias.name
        for node in ast.walk(user)
        if isinstance(node, ast.ImportFrom) and node.module == "scrapy_bloom"
        for alias in node.names
    }
    assert tried == set(scrapy_bloom.__all__)


def test_what_needs_the_client_library_says_how_to_get_it():
    said = run_line(f"{WITHOUT_REDIS} import scrapy_bloom; scrapy_bloom.RedisFilter").stderr
    assert said.splitlines()[-1] == (
        "ModuleNotFoundError: scrapy_bloom.RedisFilter needs the package redis: pip install"
        " 'scrapy-bloom[redis]'"
    )


def test_a_star_import_brings_what_can_be_had_without_the_client_library():
    run = run_line(f"{WITHOUT_REDIS}from scrapy_bloom import *; print(*dir())")
    assert run.stderr == ""
    assert PUBLIC & set(run.stdout.split()) == PUBLIC - {"RedisFilter"}


def test_what_is_imported_loads_what_it_uses_and_no_more():
    run = run_line(
        "import sys, scrapy_bloom; print(*sys.modules);"
        "from scrapy_bloom import CanonicalFingerprinter; print(*sys.modules)"
    )
    package, fingerprinter = (set(line.split()) for line in run.stdout.splitlines())
    assert "scrapy_bloom" in package
    assert not {"scrapy", "bitarray", "mmh3", "filelock"} & package
    assert "scrapy_bloom.canonical.steps" in fingerprinter
    assert not {"bitarray", "mmh3", "filelock", "redis"} & fingerprinter
