"""The keys of slices, which are made before a slice is used and freed when it is over.

A key takes the server some 3 ms, and a script that makes or frees hundreds would block all
workers. So each of these functions runs one short script after another; between any two of them
the header says which keys there are. Workers may do so at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.plan import Plan, SliceRow, geometry, read_slices


class _Left(NamedTuple):
    """What is left to do: keys to make, keys to free, and the kind of a slice not yet named.

    `slices` are those that there are.
    """

    to_make: int
    to_free: int
    slices: bytes
    kind: str


def following(plan: Plan, slices: Sequence[SliceRow], kind: str) -> str:
    """Return the slice that is to follow others, as ``upkeep.lua`` expects it.

    :param kind: ``due`` if it begins a generation, ``full`` if the newest one is full; ``new`` if
        none is needed, because the newest one still lacks keys.
    """
    if kind == "new":
        return ""
    spec = plan.next(slices, due=kind == "due")
    return f"{geometry(spec)}:{slices[-1].number + 1}"


def make_keys(link: Link, key: str, epoch: str, next_slice: str = "") -> None:
    """Make all keys of the slice that needs some.

    :param next_slice: as :func:`following` returns it.
    :raises BackendError: if there was no answer, or if the server is full.
    """
    while _step(link, key, epoch, next_slice).to_make:
        next_slice = ""


def free_keys(link: Link, key: str) -> Iterator[int]:
    """Free what is to go; yield how many keys are left, again and again.

    :raises BackendError: if there was no answer.
    """
    while left := _step(link, key, probe=True).to_free:
        yield left


def tend(link: Link, key: str, epoch: str, plan: Plan) -> bool:
    """Make keys of the slice that will be needed soon, and free what is to go, for a while.

    The server has half of that time for others.

    :returns: whether nothing is left to do.
    :raises BackendError: if there was no answer.
    """
    next_slice, until = "", time.monotonic() + upkeep.TENDED
    while True:
        began = time.monotonic()
        left = _step(link, key, epoch, next_slice)
        next_slice = following(plan, read_slices(left.slices), left.kind) if left.kind else ""
        now = time.monotonic()
        if not (next_slice or left.to_make or left.to_free):
            return True
        if now > until or not link.pause(now - began):
            return False


def _step(
    link: Link, key: str, epoch: str = "", next_slice: str = "", *, probe: bool = False
) -> _Left:
    _, to_make, to_free, slices, kind = link.run("upkeep", key, epoch, next_slice, probe=probe)
    return _Left(int(to_make), int(to_free), slices, kind.decode())
