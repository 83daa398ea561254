"""A filter that calls every other new page seen, as the worst of Bloom filters would."""

from __future__ import annotations

from zlib import crc32

from scrapy_bloom import LocalFilter


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
