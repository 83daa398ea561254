"""The scripts that run inside Redis. Each is atomic, and only scripts write to a filter's keys.

They are the files of ``lua/``. Each file begins with its keys, its arguments and its answers. All
scripts have the same two keys, in one slot of a cluster:

- ``KEYS[1]``: the header, a hash; see `header` for its fields.
- ``KEYS[2]``: what the names of the other keys begin with. Key *j* of slice *i*, counted from 0, is
  ``KEYS[2] .. i .. "." .. j``. What it holds is up to the layout; see ``lua/_bitmap.lua`` and its
  neighbours.

Probes are sent as the layout's hash makes them. Scripts that read probes are templates; they are
filled in for the layout and its number of positions in a probe.

``ARGV[1]`` is always the signature of the filter that the caller knows. If another filter is there,
a script changes nothing. Answers begin with a word.

The scripts whose names begin with ``queue_`` work on the queue beside the filter. To them
``KEYS[1]`` is the queue's state, ``KEYS[2]`` what the names of its keys begin with, and ``ARGV[1]``
the epoch of its state. ``lua/_queue.lua`` tells what is in these keys.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from importlib.resources import files
from string import Template
from typing import Final

from scrapy_bloom.redis.layout import Layout

BATCH: Final = 500
"""Most fingerprints in one call: about 3 ms of the server's time."""

_PART: Final = re.compile(r"^@(\w+)\n", re.MULTILINE)

_FIRST: Final = "--!df flags=allow-undeclared-keys\n"
"""Without this line Dragonfly refuses scripts that make names of keys. Others see a comment."""


def _section(name: str) -> re.Pattern[str]:
    return re.compile(rf"-- {name} begins\n(.*?)-- {name} ends\n", re.DOTALL)


_REST: Final = _section("rest")
_OFFER: Final = _section("offer")
_WINDOW: Final = _section("window")
_PLAIN: Final = _section("plain")
_AGES: Final = _section("ages")

_NAMES: Final = 500  # in one command that deletes keys
_BLOCKS: Final = 4096  # that these keys may have room for: Redis takes time to free large strings

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
        self.source = _FIRST + source.strip()
        self.sha = sha1(self.source.encode(), usedforsecurity=False).hexdigest()


@cache
def add(layout: Layout, hashes: int, *, dated: bool = False, aged: bool = False) -> Script:
    """Return the script that adds probes of that many positions.

    :param dated: whether the slices of the filter have dates.
    :param aged: whether some of the items have a greatest age.
    """
    return Script(_filled_in("add", layout, hashes, dated=dated, aged=aged), bytes)


@cache
def ask(layout: Layout, hashes: int, *, dated: bool = False) -> Script:
    """Return the script that looks for probes of that many positions."""
    return Script(_filled_in("ask", layout, hashes, dated=dated))


@cache
def offer(layout: Layout, hashes: int, *, dated: bool = False, aged: bool = False) -> Script:
    """Return the script that adds probes of that many positions, and queues what was new."""
    return Script(_filled_in("offer", layout, hashes, dated=dated, aged=aged), bytes)


@cache
def forget(layout: Layout, hashes: int, *, dated: bool = False) -> Script:
    """Return the script that takes probes of that many positions out again."""
    return Script(_filled_in("forget", layout, hashes, dated=dated), bytes)


@cache
def open_(layout: Layout) -> Script:
    """Return the script that finds a filter or makes one."""
    return Script(_filled_in("open", layout, 1))


@cache
def join(layout: Layout) -> Script:
    """Return the script that registers a worker."""
    return Script(_filled_in("join", layout, 1))


def read_verdicts(digits: bytes) -> list[bool]:
    """Return for each digit of an answer whether that fingerprint was there."""
    return [digit == _SEEN for digit in digits]


class _Template(Template):
    delimiter = "@"


def _read(name: str, layout: str = "") -> str:
    """Return the text of a file of ``lua/``; a line ``@name`` stands for the file ``_name``.

    :param layout: the file that ``@layout`` stands for.
    """
    text = (files(__package__) / "lua" / f"{name}.lua").read_text("utf-8")

    def part(line: re.Match[str]) -> str:
        return _read(f"_{layout if line[1] == 'layout' else line[1]}", layout)

    return _PART.sub(part, text)


def _filled_in(
    name: str, layout: Layout, hashes: int, *, dated: bool = False, aged: bool = False
) -> str:
    """Return the text of a script for a layout and probes of `hashes` positions."""
    words = {
        **layout.words(hashes),
        "blocks_per_key": str(layout.blocks_per_key),
        "per_call": str(max(1, min(_NAMES, _BLOCKS // layout.blocks_per_key))),
    }
    source = _REST.sub(r"\1" if words.get("rest", "") else "", _read(name, layout.name))
    source = _OFFER.sub(r"\1" if name == "offer" else "", source)
    source = _WINDOW.sub(r"\1" if dated else "", source)
    source = _PLAIN.sub("" if dated else r"\1", source)
    source = _AGES.sub(r"\1" if aged else "", source)
    return _Template(source).substitute(words)


RENEW: Final = Script(_read("renew"))
LEAVE: Final = Script(_read("leave"))
LIVE: Final = Script(_read("live"))
LOOK: Final = Script(_read("look"))
NOW: Final = Script(_read("now"))
CLEAR: Final = Script(_read("clear"))
INSTALL: Final = Script(_read("install"))
RETIRE: Final = Script(_read("retire"))
NUMBERS: Final = Script(_read("numbers"))

QUEUE_JOIN: Final = Script(_read("queue_join"))
QUEUE_RENEW: Final = Script(_read("queue_renew"))
QUEUE_EXCHANGE: Final = Script(_read("queue_exchange"))
QUEUE_LOOK: Final = Script(_read("queue_look"))
QUEUE_REQUEUE: Final = Script(_read("queue_requeue"))
QUEUE_SURVEY: Final = Script(_read("queue_survey"))
