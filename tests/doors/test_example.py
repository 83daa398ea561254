"""The example spiders do what the docs say of them."""

from pathlib import Path

import pytest
from support.processes import run

pytestmark = [pytest.mark.scrapy, pytest.mark.long]

EXAMPLE = Path(__file__).parents[2] / "example_project"


def test_lists_are_read_in_each_run_articles_once_and_login_pages_again():
    printed = run(EXAMPLE / "month.py", 3).stdout
    rows = [line.strip("│ ").split("│") for line in printed.splitlines() if line.startswith("│")]
    found = [[cell.strip() for cell in row] for row in rows]
    assert found == [
        ["1", "4", "12", "36", "3"],
        ["2", "4", "12", "12", "0"],
        ["3", "4", "12", "12", "0"],
        ["all", "12", "36", "60", "3"],
    ]
    assert "missed: 0; fetched again for nothing: 0; left with a login page: 0." in printed
