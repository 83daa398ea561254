"""What "the same request" means: URLs in canonical form, requests as fingerprints.

This room knows Scrapy and w3lib; it does not know of filters.
"""

from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter, Change

__all__ = ["CanonicalFingerprinter", "Change"]
