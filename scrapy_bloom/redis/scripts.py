"""What runs inside Redis. Each script is atomic, and only scripts write what a filter stores.

They are the files of ``lua/``; each begins with its keys, its arguments and its answers. All have
the same two keys, in one slot of a cluster:

- ``KEYS[1]``: the header, a hash; see `header` for its fields.
- ``KEYS[2]``: what the names of the segments begin with. Segment *j* of slice *i*, counted from 0,
  is the string ``KEYS[2] .. i .. "." .. j``: :data:`SEGMENT_BLOCKS` blocks of 8 KiB (fewer in the
  last segment of a slice), and one byte more whose first bit is set for as long as the segment
  lives. A check reads that bit with the others, so a segment that was evicted or deleted is noticed
  by the first check that needs it.

Probes come as they are hashed, :data:`PROBE_BYTES` each. Scripts that read them are templates, made
for the filter's number of positions in one.

``ARGV[1]`` is always the signature of the filter that the caller knows; a script does nothing to
another one. Answers begin with a word.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from importlib.resources import files
from string import Template
from typing import Final

from scrapy_bloom.core.hashing import PROBE_BYTES

SEGMENT_BLOCKS: Final = 511
"""Blocks in a segment: just below 4 MiB, because exactly 4 MiB would take 5 of the allocator."""

BATCH: Final = 500
"""Most fingerprints in one call: about 3 ms of the server's time."""

_FEW: Final = 4
"""Positions in the first look at an item; most looks end there."""

_PART: Final = re.compile(r"^@(\w+)\n", re.MULTILINE)

_REST: Final = re.compile(r"-- rest begins\n(.*?)-- rest ends\n", re.DOTALL)

_SEEN: Final = ord("1")


class Script:
    """One Lua script and the name by which Redis knows it.

    Attributes:
        source: the text.
        sha: its SHA-1, in hex.
        answers: the type of its answers, bytes or a list that begins with bytes.
    """

    __slots__ = ("answers", "sha", "source")

    def __init__(self, source: str, answers: type = list) -> None:
        self.answers = answers
        self.source = source.strip()
        self.sha = sha1(self.source.encode(), usedforsecurity=False).hexdigest()


@cache
def add(hashes: int) -> Script:
    """Return the script that adds probes of that many positions."""
    return Script(_unrolled("add", hashes), bytes)


@cache
def ask(hashes: int) -> Script:
    """Return the script that looks for probes of that many positions."""
    return Script(_unrolled("ask", hashes))


def read_verdicts(digits: bytes) -> list[bool]:
    """Return for each digit of an answer whether the fingerprint was there."""
    return [digit == _SEEN for digit in digits]


class _Template(Template):
    delimiter = "@"


def _read(name: str) -> str:
    """Return the text of a file of ``lua/``; a line ``@name`` stands for the file ``_name``."""
    text = (files(__package__) / "lua" / f"{name}.lua").read_text("utf-8")
    return _PART.sub(lambda line: _read(f"_{line[1]}"), text)


def _unrolled(name: str, hashes: int) -> str:
    """Return the text of a script for probes of so many positions, each in a variable of its own.

    With tables of them the server would work a fifth longer.
    """
    names = [f"p{number}" for number in range(1, hashes + 1)]
    words = {
        "segment_blocks": SEGMENT_BLOCKS,
        "probe": ", ".join([*names, "h"]),
        "layout": f"'>{'H' * hashes}{'x' * (PROBE_BYTES - 2 * hashes - 4)}I4'",
    }
    for group, some in {"few": names[:_FEW], "rest": names[_FEW:], "all": names}.items():
        words |= {
            group: ", ".join(some),
            f"{group}_offsets": ", ".join(f"base + {name}" for name in some),
            f"{group}_numbers": "'" + r"%d\0" * len(some) + "'",
            f"{group}_texts": "'" + "s" * len(some) + "'",
            f"get_{group}": ", ".join(f"'GET', 'u1', {name}" for name in some),
            f"set_{group}": ", ".join(f"'SET', 'u1', {name}, '1'" for name in some),
        }
    source = _REST.sub(r"\1" if hashes > _FEW else "", _read(name))
    return _Template(source).substitute(words)


OPEN: Final = Script(_read("open"))
JOIN: Final = Script(_read("join"))
RENEW: Final = Script(_read("renew"))
LEAVE: Final = Script(_read("leave"))
LIVE: Final = Script(_read("live"))
LOOK: Final = Script(_read("look"))
CLEAR: Final = Script(_read("clear"))
