"""What the docs, the README and the results of the benchmarks show is there and holds."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.messages import messages

from bench import results
from bench.claims import CLAIMS
from bench.parts import PARTS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = "https://scrapy-bloom.readthedocs.io/en/stable/"
SOURCE = "https://github.com/scrapy-bloom/scrapy-bloom"
RAW = "https://raw.githubusercontent.com/scrapy-bloom/scrapy-bloom/main/"
NAMES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "llms.txt", "pyproject.toml")
FILES = [*(ROOT / name for name in NAMES), *ROOT.glob(".github/*/bug.yml")]  # not in the sdist
LINK = re.compile(rf"(?:{SITE}|{SOURCE}|{RAW})[^\s)>\"',`]*")
ENTRIES = re.findall(r"^`(.+)`\n: ", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)


def test_troubleshooting_has_every_warning_and_error_of_a_crawl_and_no_other():
    used = set()
    for text, place in messages().items():
        entry = max(filter(text.startswith, ENTRIES), key=len, default=None)
        assert entry, f"docs/troubleshooting.md lacks {place}: {text}"
        used.add(entry)
    assert sorted(used) == sorted(ENTRIES)


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


def test_every_part_is_kept_in_full_and_drawn():
    kept = results.read()
    assert set(kept) == set(PARTS)
    assert not [name for name, result in kept.items() if result["quick"]]
    drawn = {path.stem for path in (DOCS / "plots").glob("*.svg")}
    named = {plot.name for part in PARTS.values() for plot in part.plots}
    assert drawn == {"demo"} | named | {f"{name}-dark" for name in named}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text)
def test_what_we_claim_holds(claim):
    assert claim.holds(results.read())
