"""A filter that calls every other new page seen, as the worst of Bloom filters would."""

from __future__ import annotations

from zlib import crc32

from scrapy_bloom import LocalFilter, WindowedFilter


class LossyFilter(LocalFilter):
    """Takes half of all fingerprints for seen, always the same ones."""

    def add(self, fingerprint):
        readmitted = fingerprint in self.forgotten
        return super().add(fingerprint) or (not readmitted and crc32(fingerprint) % 2 == 0)

    def contains_many(self, fingerprints):
        fingerprints = list(fingerprints)
        return [
            seen or (crc32(fingerprint) % 2 == 0 and fingerprint not in self.forgotten)
            for seen, fingerprint in zip(
                super().contains_many(fingerprints), fingerprints, strict=True
            )
        ]


class LossyWindow(WindowedFilter):
    """Takes new pages for seen, and never adds them, as long as it has certain generations."""

    def add(self, fingerprint):
        [real] = super().contains_many([fingerprint])
        if not real and fingerprint not in self.forgotten and self._is_mistaken(fingerprint):
            return True
        return super().add(fingerprint)

    def contains_many(self, fingerprints):
        fingerprints = list(fingerprints)
        return [
            seen or (fingerprint not in self.forgotten and self._is_mistaken(fingerprint))
            for seen, fingerprint in zip(
                super().contains_many(fingerprints), fingerprints, strict=True
            )
        ]

    def _is_mistaken(self, fingerprint):
        dates = {slice_.since for slice_ in self.state().slices}
        return any(crc32(fingerprint + b"%d" % since) % 6 == 0 for since in dates)
