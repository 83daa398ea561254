"""A filter that calls every other new page seen, as the worst of Bloom filters would."""

from __future__ import annotations

import random
from functools import cache

from bitarray import bitarray

from scrapy_bloom.filter.sizing import BLOCK_BITS, HASHES
from scrapy_bloom.local.store import Store


def make_lossy(seen):
    """Have a filter take half of all fingerprints for seen: set bits as if it were far too full.

    Twice is as good as once: they are always the same bits.
    """
    slice_ = seen.slices[0]
    for index in range(len(slice_.blocks)):
        block = slice_.writable(index)
        block |= _noise(index, 0.5 ** (1 / HASHES))


def install(patch):
    """Have each store do so with its filter: ``patch(Store, "__init__", …)``."""
    original = Store.__init__

    def opened(store, *arguments, **keywords):
        original(store, *arguments, **keywords)
        make_lossy(store.filter)

    patch(Store, "__init__", opened)


@cache
def _noise(index, density):
    dice = random.Random(index)
    return bitarray([dice.random() < density for _ in range(BLOCK_BITS)], endian="big")
