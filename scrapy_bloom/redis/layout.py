"""What a layout is: how items are stored in Redis, and how much room they need.

A layout is one class here, named in :data:`registry.LAYOUTS`, and one file of ``lua/`` of the same
name. Everything else is the same for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

from scrapy_bloom.core.growth import SliceSpec
from scrapy_bloom.core.info import SliceCount
from scrapy_bloom.registry import LAYOUTS


class Layout(ABC):
    """How items are stored. Its class takes no arguments.

    Attributes:
        name: its name in :data:`registry.LAYOUTS`, in the header and in ``lua/``.
        commands: what a user's ACL must allow for it, beside what all filters need.
        blocks_per_key: how many blocks of a slice one key holds.
        removes: whether an item that is forgotten is taken out, so that it takes no room. If not,
            it is put on a list of those that are new once more.
    """

    name: ClassVar[str]
    commands: ClassVar[tuple[str, ...]]
    blocks_per_key: ClassVar[int]
    removes: ClassVar[bool] = False

    @abstractmethod
    def hashes(self, error_rate: float) -> int:
        """Return k for a filter of this total error rate: how many positions an item takes."""

    @abstractmethod
    def next_slice(
        self, slices: Sequence[SliceSpec], capacity: int, error_rate: float, hashes: int
    ) -> SliceSpec:
        """Return the geometry of the slice to add to `slices`; see :func:`growth.next_slice`."""

    @abstractmethod
    def make_hash(self, secret: bytes, *, digests: bool) -> Callable[[bytes], bytes]:
        """Return the keyed hash whose bytes are sent to the scripts: the probe of an item."""

    @abstractmethod
    def words(self, hashes: int) -> Mapping[str, str]:
        """Return what to put into the scripts that read probes.

        Among them are ``probe``, the names of the variables of a probe, and ``format``, by which
        ``struct.unpack`` reads it.

        :param hashes: k.
        """

    @abstractmethod
    def ask(self, pipeline: Any, start: str, spec: SliceSpec) -> None:
        """Put commands into a pipeline that tell what a slice holds.

        :param start: what the names of its keys begin with.
        """

    @abstractmethod
    def count(self, spec: SliceSpec, items: int, answers: Sequence[int], hashes: int) -> SliceCount:
        """Return what is known of a slice with so many items, from the answers to :meth:`ask`."""

    @abstractmethod
    def memory(self, spec: SliceSpec, items: int, made: Iterable[int]) -> int:
        """Return the bytes that a slice with so many items takes.

        :param made: of each field ``m:i.j`` that the header has for this slice, the j.
        """


@cache
def layout_of(name: str) -> Layout:
    """Return the layout of this name.

    :raises KeyError: if there is none.
    """
    module, _, kind = LAYOUTS[name].partition(":")
    layout: Layout = getattr(import_module(module), kind)()
    return layout


def key_count(layout: Layout, spec: SliceSpec) -> int:
    """Return how many keys a slice has when all are made."""
    return -(-spec.blocks // layout.blocks_per_key)


def keys_at_once(layout: Layout) -> int:
    """Return how many keys one command may delete, so that the server never stands still for long.

    As many as a call of clear.lua.
    """
    return max(1, min(2000, 4096 // layout.blocks_per_key))


def sampled(spec: SliceSpec, most: int) -> list[int]:
    """Return the numbers of an even sample of a slice's blocks."""
    count = min(spec.blocks, most)
    return [i * spec.blocks // count for i in range(count)]
