"""What is installed is what is tested, and costs nothing until it is used."""

import ast
import subprocess
import sys
from pathlib import Path

import scrapy_bloom


def test_the_tests_import_the_installed_wheel():
    package = Path(scrapy_bloom.__file__).parent
    assert "site-packages" in package.parts
    assert (package / "py.typed").is_file()


def test_every_public_name_can_be_imported():
    for name in scrapy_bloom.__all__:
        assert getattr(scrapy_bloom, name) is not None
    assert set(scrapy_bloom.__all__) <= set(dir(scrapy_bloom))


def test_the_typed_user_has_tried_every_public_name():
    user = ast.parse((Path(__file__).parent / "typed" / "api.py").read_text())
    tried = {
        alias.name
        for node in ast.walk(user)
        if isinstance(node, ast.ImportFrom) and node.module == "scrapy_bloom"
        for alias in node.names
    }
    assert tried == set(scrapy_bloom.__all__)


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, scrapy_bloom; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"scrapy", "bitarray", "mmh3", "filelock"} & set(loaded)


def test_the_fingerprinter_loads_no_filter():
    code = "import sys; from scrapy_bloom import CanonicalFingerprinter; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "scrapy_bloom.canonical.steps" in loaded
    assert not {"bitarray", "mmh3", "filelock", "redis"} & set(loaded)
