"""What the docs, the README and the results of the benchmarks show is there and holds."""

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import scrapy

from bench import results
from bench.claims import CLAIMS
from bench.parts import PARTS
from scrapy_bloom import __version__
from scrapy_bloom.filter.sizing import next_slice
from scrapy_bloom.values import DEFAULT_CAPACITY, DEFAULT_ERROR_RATE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = "https://scrapy-bloom.readthedocs.io/en/stable/"
SOURCE = "https://github.com/scrapy-bloom/scrapy-bloom"
RAW = "https://raw.githubusercontent.com/scrapy-bloom/scrapy-bloom/main/"
NAMES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "llms.txt", "pyproject.toml")
FILES = [*(ROOT / name for name in NAMES), *ROOT.glob(".github/*/bug.yml")]  # not in the sdist
LINK = re.compile(rf"(?:{SITE}|{SOURCE}|{RAW})[^\s)>\"',`]*")
MATRIX = json.loads((DOCS / "matrix.json").read_text())


def test_the_docs_have_the_tables_of_the_code():
    command = [sys.executable, str(DOCS / "tables.py")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_python_of_the_docs_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where it saves a filter
    text = (DOCS / "guides" / "without-scrapy.md").read_text()
    code, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    lines = [line.partition("#") for line in code.splitlines() if line]
    scope = {}
    for line, _, comment in lines:
        if comment and "," not in comment.split(":")[0].replace("[False, False]", ""):
            assert repr(eval(line, scope)) == comment.split(":")[0].strip()
        else:
            exec(line, scope)


def test_the_first_block_says_what_it_replaces_in_a_new_project():
    """Pasted above it, the block would be switched off without a word."""
    template = Path(scrapy.__file__).parent / "templates/project/module/settings.py.tmpl"
    assert "\nADDONS = {}\n" in template.read_text()
    for page in (ROOT / "README.md", DOCS / "index.md"):
        block, *_ = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        assert "replaces the template's `ADDONS = {}`" in block


def test_the_drawing_of_growth_shows_the_slices_of_the_code():
    drawing = (DOCS / "how" / "growth.html").read_text()
    shown = re.findall(r">([\d.]+) (M|%)", drawing)
    slices = []
    for _ in range(3):
        slices.append(next_slice(slices, DEFAULT_CAPACITY, DEFAULT_ERROR_RATE))
    assert shown == [(f"{one.capacity / 1e6:.2g}", "M") for one in slices] + [
        (f"{100 * one.error_rate / DEFAULT_ERROR_RATE:.3g}", "%") for one in slices
    ]


def test_all_say_the_same_of_versions_and_systems():
    project = (ROOT / "pyproject.toml").read_text()
    *_, last = (ROOT / "README.md").read_text().splitlines()
    pythons = re.findall(r"Python :: (3\.\d+)", project)
    tested = f"{pythons[0]} to {pythons[-1]}"
    assert last.startswith(f"Python {tested},")
    assert f"| Python | {tested} |" in (DOCS / "reference" / "versions.md").read_text()
    assert {row["python"].rpartition(".")[0] for row in MATRIX} == set(pythons)
    assert re.findall(r"Operating System :: (.+)\"", project) == ["POSIX :: Linux"]
    assert "Linux; a part of the tests runs on macOS and Windows." in last


def test_the_metadata_name_the_docs_of_their_version():
    project = (ROOT / "pyproject.toml").read_text()
    (version,) = re.findall(r'^Documentation = ".*/v(.+)/"', project, re.MULTILINE)
    assert version == __version__


def test_the_matrix_of_versions_runs_tests_that_are_there(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    for test in (test for tests in import_module("matrix").SMOKE.values() for test in tests):
        path, _, name = test.partition("::")
        text = (ROOT / "tests" / path).read_text()
        assert re.search(rf"^(async )?def {name.partition('[')[0]}\(", text, re.MULTILINE), test


def test_each_promise_names_tests_that_are_there():
    law = (DOCS / "how" / "law.md").read_text()
    promises = re.findall(r"^(\d)\. \*\*", law, re.MULTILINE)
    rows = dict(re.findall(r"^\| ([^|]+) \| (`test_.+`) \|$", law, re.MULTILINE))
    assert [*rows] == [*promises, "the error rate"]
    source = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    tests = set(re.findall(r"def (test_\w+)\(", source))
    assert [
        name for row in rows.values() for name in re.findall(r"`(\w+)`", row) if name not in tests
    ] == []


# Links


def place_of(url):
    """Return the file of this project that a link stands for; None if it is a page of GitHub."""
    if url.startswith(SITE):
        page, _, _ = url.removeprefix(SITE).partition("#")
        return DOCS / (page.removesuffix(".html") + ".md" if page else "index.md")
    if url.startswith(RAW):
        return ROOT / url.removeprefix(RAW)
    below = url.removeprefix(SOURCE).lstrip("/")
    return ROOT / below.removeprefix("blob/main/") if below.startswith("blob/") else None


def headings(path):
    """Return the anchors of a page, as MyST makes them."""
    found = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in found}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_links_lead_to_pages_that_are_there(file):
    links = LINK.findall(file.read_text(encoding="utf-8"))
    assert links
    for link in links:
        place = place_of(link)
        assert place is None or place.is_file(), link
        _, _, anchor = link.partition("#")
        assert not anchor or anchor in headings(place), link


def test_links_of_the_readme_work_on_pypi_too():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)]+)\)|src(?:set)?=\"([^\"]+)\"", text)
    assert targets
    assert all("".join(target).startswith("https://") for target in targets)


# Benchmarks


def test_every_benchmark_was_run_in_full_and_drawn():
    kept = results.read()
    assert set(kept) == set(PARTS)
    assert not [name for name, result in kept.items() if result["quick"]]
    drawn = {path.stem for path in (DOCS / "plots").glob("*.svg")}
    named = {plot.name for part in PARTS.values() for plot in part.plots}
    assert drawn == {"demo", "top"} | named | {f"{name}-dark" for name in named}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text)
def test_each_claim_about_benchmarks_holds(claim):
    assert claim.holds(results.read())
