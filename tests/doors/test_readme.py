"""README.md is short, and its links and those of the project lead to what is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = "https://scrapy-bloom.readthedocs.io/en/stable/"
SOURCE = "https://github.com/scrapy-bloom/scrapy-bloom"
RAW = "https://raw.githubusercontent.com/scrapy-bloom/scrapy-bloom/main/"
FILES = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "llms.txt",
    ".github/ISSUE_TEMPLATE/bug.yml",
]
LINK = re.compile(rf"(?:{SITE}|{SOURCE}|{RAW})[^\s)>\"',`]*")


def place_of(url):
    """Return the file of this project that a link stands for; None if it is a page of GitHub."""
    if url.startswith(SITE):
        page, _, _ = url.removeprefix(SITE).partition("#")
        return ROOT / "docs" / (page.removesuffix(".html") + ".md" if page else "index.md")
    if url.startswith(RAW):
        return ROOT / url.removeprefix(RAW)
    below = url.removeprefix(SOURCE).lstrip("/")
    return ROOT / below.removeprefix("blob/main/") if below.startswith("blob/") else None


def headings(path):
    """Return the anchors of a page, as MyST makes them."""
    found = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in found}


def test_the_readme_is_read_in_two_minutes():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110


def test_links_of_the_readme_work_on_pypi_too():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)]+)\)|src(?:set)?=\"([^\"]+)\"", text)
    assert targets
    assert all("".join(target).startswith("https://") for target in targets)


@pytest.mark.parametrize("file", FILES)
def test_links_lead_to_pages_that_are_there(file):
    path = ROOT / file
    if not path.exists():  # .github is not in the sdist
        assert file.startswith(".github")
        return
    links = LINK.findall(path.read_text(encoding="utf-8"))
    assert links
    for link in links:
        place = place_of(link)
        assert place is None or place.is_file(), link
        _, _, anchor = link.partition("#")
        assert not anchor or anchor in headings(place), link
