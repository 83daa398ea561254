"""The scripts that run inside Redis. Each is atomic, and only scripts write to a filter's keys.

They are the files of ``lua/``. Each file begins with its keys, its arguments and its answers. All
scripts have the same two keys, in one slot of a cluster:

- ``KEYS[1]``: the header, a hash; see `header` for its fields.
- ``KEYS[2]``: the beginning of the names of the segments. Segment *j* of slice *i*, counted from 0,
  is the string ``KEYS[2] .. i .. "." .. j``: :data:`SEGMENT_BLOCKS` blocks of 8 KiB (fewer in the
  last segment of a slice), and one more byte whose first bit is set as long as the segment is
  there. Each check reads that bit with the others. So the first check that needs an evicted or
  deleted segment notices the loss.

Probes are sent as the hash makes them, :data:`PROBE_BYTES` bytes each. Scripts that read probes are
templates; they are filled in for the filter's number of positions in a probe.

``ARGV[1]`` is always the signature of the filter that the caller knows. If another filter is there,
a script changes nothing. Answers begin with a word.
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
"""Blocks in a segment: just below 4 MiB, because the allocator gives 5 MiB to exactly 4 MiB."""

BATCH: Final = 500
"""Most fingerprints in one call: about 3 ms of the server's time."""

_FEW: Final = 4
"""How many positions of an item are read first. Most searches end there."""

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
    """Return for each digit of an answer whether that fingerprint was there."""
    return [digit == _SEEN for digit in digits]


class _Template(Template):
    delimiter = "@"


def _read(name: str) -> str:
    """Return the text of a file of ``lua/``; a line ``@name`` stands for the file ``_name``."""
    text = (files(__package__) / "lua" / f"{name}.lua").read_text("utf-8")
    return _PART.sub(lambda line: _read(f"_{line[1]}"), text)


def _unrolled(name: str, hashes: int) -> str:
    """Return a script's text for probes of `hashes` positions, with a variable for each position.

    With tables instead of variables the server would take a fifth more time.
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
