"""What a layout is: how items are stored in Redis, and how much room they need.

A layout is one class here, named in :data:`registry.LAYOUTS`, and one file of ``lua/`` of the same
name. Everything else is the same for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import ClassVar

from scrapy_bloom.core.growth import SliceSpec
from scrapy_bloom.registry import LAYOUTS


class Layout(ABC):
    """How items are stored. Its class takes no arguments.

    Attributes:
        name: its name in :data:`registry.LAYOUTS`, in the header and in ``lua/``.
        blocks_per_key: how many blocks of a slice one key holds.
    """

    name: ClassVar[str]
    blocks_per_key: ClassVar[int]

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
