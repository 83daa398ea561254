"""A third backend, to see how little one takes: bits are numbers in a set, pickled at the end.

It knows nothing of kills, and asks nobody whether the file is its own.
"""

from __future__ import annotations

import pickle
from collections import Counter

from scrapy_bloom.backends.base import Backend, Opened
from scrapy_bloom.core.base import Filter
from scrapy_bloom.core.growth import filter_hashes, next_slice
from scrapy_bloom.core.hashing import make_probe, new_secret
from scrapy_bloom.core.info import count_bits, filter_info
from scrapy_bloom.core.sizing import BLOCK_BITS
from scrapy_bloom.errors import SettingError
from scrapy_bloom.options import CAPACITY, ERROR_RATE, read_capacity, read_error_rate

FILE = "toy.pickle"


class ToyFilter(Filter):
    """A filter that starts with what another one dumped, if it is given that."""

    def __init__(self, capacity=1_000_000, error_rate=1e-6, dump=None):
        self._capacity = read_capacity("capacity", capacity)
        self._error_rate = read_error_rate("error_rate", error_rate)
        self._hashes = filter_hashes(self._error_rate)
        self.clear()
        if dump:
            self.secret, self._slices, self._forgotten = pickle.loads(dump)

    def add(self, fingerprint):
        if fingerprint in self:
            return True
        if self._forgotten.pop(fingerprint, None) is not None:
            return False
        if self._slices[-1][1] == self._slices[-1][0].capacity:
            self._grow()
        spec, items, bits = self._slices[-1]
        bits |= self._bits(fingerprint, spec)
        self._slices[-1] = (spec, items + 1, bits)
        return False

    def add_many(self, fingerprints):
        return [self.add(fingerprint) for fingerprint in fingerprints]

    def __contains__(self, fingerprint):
        return fingerprint not in self._forgotten and self._place(fingerprint) is not None

    def contains_many(self, fingerprints):
        return [fingerprint in self for fingerprint in fingerprints]

    def forget(self, fingerprint):
        """Bits cannot be taken back: what is forgotten is kept, with the number of its slice."""
        if known := fingerprint in self:
            self._forgotten[fingerprint] = self._place(fingerprint)
        return known

    def forget_many(self, fingerprints):
        return [self.forget(fingerprint) for fingerprint in fingerprints]

    def info(self):
        counts = []
        gone = Counter(self._forgotten.values())
        for number, (spec, items, bits) in enumerate(self._slices):
            touched = Counter(bit // BLOCK_BITS for bit in bits)
            fills = [touched[block] / BLOCK_BITS for block in range(spec.blocks)]
            counts.append(count_bits(spec, items - gone[number], fills, self._hashes))
        memory = sum(60 * len(bits) for _, _, bits in self._slices)  # about
        return filter_info([counts], error_rate=self._error_rate, memory=memory)

    def clear(self):
        self.secret, self._slices, self._forgotten = new_secret(), [], {}
        self._grow()
        return True

    def dump(self):
        return pickle.dumps((self.secret, self._slices, self._forgotten))

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def _place(self, fingerprint):
        """Return the number of the slice that has a fingerprint's bits, None if none has."""
        for number, (spec, _, bits) in enumerate(self._slices):
            if self._bits(fingerprint, spec) <= bits:
                return number
        return None

    def _bits(self, fingerprint, spec):
        *positions, h = make_probe(self.secret, self._hashes, digests=True)(fingerprint)
        return {(h * spec.blocks >> 32) * BLOCK_BITS + position for position in positions}

    def _grow(self):
        specs = [spec for spec, _, _ in self._slices]
        spec = next_slice(specs, self._capacity, self._error_rate, self._hashes)
        self._slices.append((spec, 0, set()))


class ToyBackend(Backend):
    """``BLOOM_BACKEND = "toy"``, kept in the job directory."""

    def open(self, settings, crawl):
        if crawl.job_dir is None:
            raise SettingError("BLOOM_BACKEND 'toy' needs a JOBDIR.")
        path = crawl.job_dir / FILE
        dump = path.read_bytes() if path.exists() else None
        seen = ToyFilter(settings[CAPACITY], settings[ERROR_RATE], dump)
        restored = seen.info().items
        return Opened(seen, lambda: path.write_bytes(seen.dump()), f"in {path}", restored, FILE)
