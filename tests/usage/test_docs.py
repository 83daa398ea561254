"""What the docs, the README and the results of the benchmarks show is there and holds."""

import ast
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import scrapy_bloom
from bench import results
from bench.claims import CLAIMS
from bench.parts import PARTS
from scrapy_bloom import __version__, errors

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = "https://scrapy-bloom.readthedocs.io/en/stable/"
SOURCE = "https://github.com/scrapy-bloom/scrapy-bloom"
RAW = "https://raw.githubusercontent.com/scrapy-bloom/scrapy-bloom/main/"
NAMES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "llms.txt", "pyproject.toml")
FILES = [*(ROOT / name for name in NAMES), *ROOT.glob(".github/*/bug.yml")]  # not in the sdist
LINK = re.compile(rf"(?:{SITE}|{SOURCE}|{RAW})[^\s)>\"',`]*")


def test_the_docs_have_the_tables_of_the_code():
    command = [sys.executable, str(DOCS / "tables.py")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_python_of_the_docs_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where it saves a filter
    text = (DOCS / "guides" / "without-scrapy.md").read_text()
    code, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    scope = {}
    for line, _, comment in (line.partition("#") for line in code.splitlines() if line):
        if comment and "," not in comment.split(":")[0].replace("[False, False]", ""):
            assert repr(eval(line, scope)) == comment.split(":")[0].strip()
        else:
            exec(line, scope)


def test_all_say_the_same_of_versions_and_systems():
    project = (ROOT / "pyproject.toml").read_text()
    (version,) = re.findall(r'^Documentation = ".*/v(.+)/"', project, re.MULTILINE)
    assert version == __version__
    *_, last = (ROOT / "README.md").read_text().splitlines()
    pythons = re.findall(r"Python :: (3\.\d+)", project)
    tested = f"{pythons[0]} to {pythons[-1]}"
    assert last.startswith(f"Python {tested},")
    assert f"| Python | {tested} |" in (DOCS / "reference" / "versions.md").read_text()
    matrix = json.loads((DOCS / "matrix.json").read_text())
    assert {row["python"].rpartition(".")[0] for row in matrix} == set(pythons)


def those_of(path):
    return {*re.findall(r"^ *(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)}


def test_the_matrix_of_versions_runs_tests_that_are_there(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    for test in (test for tests in import_module("matrix").SMOKE.values() for test in tests):
        path, _, name = test.partition("::")
        assert name.partition("[")[0] in those_of(ROOT / "tests" / path), test


def test_each_promise_names_tests_that_are_there():
    law = (DOCS / "how" / "law.md").read_text()
    promises = re.findall(r"^(\d)\. \*\*", law, re.MULTILINE)
    rows = dict(re.findall(r"^\| ([^|]+) \| (`test_.+`) \|$", law, re.MULTILINE))
    assert [*rows] == [*promises, "the error rate"]
    there = set().union(*map(those_of, (ROOT / "tests").rglob("*.py")))
    assert {name for row in rows.values() for name in re.findall(r"`(\w+)`", row)} <= there


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


# Troubleshooting: every warning and error that a crawl can log

TERMS = re.findall(r"^`(.+)`\n: ", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
ENTRIES = [
    entry.removeprefix("Disabled scrapy_bloom.Addon: ")  # which Scrapy writes
    for term in TERMS
    for entry in term.split("` · `")
]
SAYING = {
    **{name: 0 for name, kind in vars(errors).items() if isinstance(kind, type)},
    **dict.fromkeys(("warning", "error", "exception", "critical", "warn", "NotConfigured"), 0),
    **dict.fromkeys(("log", "once"), 1),
}
"""What writes a message, and which of its arguments that is."""

SPEAKERS = {"difference", "error", "warnings"}
"""Functions that return or yield messages, or put them into `text`."""

HOLE = "…"
_FORMAT = re.compile(r"%(\(\w+\))?\d*(\.\d+)?[a-z]|%%")


def test_troubleshooting_has_every_warning_and_error_of_a_crawl_and_no_other():
    used = set()
    for text, place in messages().items():
        entry = max(filter(text.startswith, ENTRIES), key=len, default=None)
        assert entry, f"docs/troubleshooting.md lacks {place}: {text}"
        used.add(entry)
    assert sorted(used) == sorted(ENTRIES)


def messages():
    """Return each message, with … for what it fills in, and where it stands."""
    root = Path(scrapy_bloom.__file__).parent
    found = {}
    for path in sorted({*root.rglob("*.py")} - {*root.glob("commands/*.py")}):
        module = ast.parse(path.read_text(encoding="utf-8"))
        nodes = [*ast.walk(module)]
        for written in (one for node in nodes for one in _said(node)):
            for text in _texts(written):
                if ": must be " not in text and len(re.findall(r"\w{2,}", text)) > 1:
                    where = f"{path.relative_to(root).as_posix()}:{written.lineno}"
                    found.setdefault(text, where)
    return found


def _said(node):
    """Yield what a call writes, or a function returns, if that is a message."""
    if isinstance(node, ast.FunctionDef) and node.name in SPEAKERS:
        for part in ast.walk(node):
            built = isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "text"
            if (isinstance(part, ast.Return | ast.Yield) or built) and part.value:
                yield part.value
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
        if re.search(r"%\(\w+\)s", str(node.value.value)):  # a template that is chosen elsewhere
            yield node.value
    elif isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        place = SAYING.get(name, len(node.args))
        quiet = place == 1 and ast.unparse(node.args[0]) in {"logging.INFO", "logging.DEBUG"}
        if len(node.args) > place and not quiet:
            yield node.args[place]


def _texts(written):
    if isinstance(written, ast.Constant) and isinstance(written.value, str):
        yield _FORMAT.sub(HOLE, written.value)
    elif isinstance(written, ast.JoinedStr):
        parts = written.values
        yield "".join(one.value if isinstance(one, ast.Constant) else HOLE for one in parts)
    elif isinstance(written, ast.IfExp):
        yield from _texts(written.body)
        yield from _texts(written.orelse)
    elif isinstance(written, ast.BinOp) and isinstance(written.op, ast.Add):
        yield from (text + HOLE for text in _texts(written.left))
