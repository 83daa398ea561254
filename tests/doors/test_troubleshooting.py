"""docs/troubleshooting.md has every warning and error that a crawl can log, and no other."""

import re
from pathlib import Path

from support.messages import messages

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
ENTRIES = re.findall(r"^`(.+)`\n: ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def entry_of(text):
    """Return the entry for a message: the longest one that it begins with."""
    return max(filter(text.startswith, ENTRIES), key=len, default=None)


def test_every_message_has_an_entry():
    missing = [f"{place}: {text}" for text, place in messages().items() if not entry_of(text)]
    assert not missing, f"{PAGE} lacks:\n" + "\n".join(missing)


def test_every_entry_is_a_message():
    used = {entry_of(text) for text in messages()}
    unknown = [entry for entry in ENTRIES if entry not in used]
    assert not unknown, f"{PAGE} has what the code does not say:\n" + "\n".join(unknown)


def test_no_entry_stands_twice():
    assert len(ENTRIES) == len(set(ENTRIES))


def test_messages_are_found_in_the_source():
    found = messages()
    assert len(found) > 60
    assert "The stats collector failed" in " ".join(found)
    assert any(text.startswith("…: … is using this job directory.") for text in found)
