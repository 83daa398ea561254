"""From bytes to bits: which block of a filter a fingerprint belongs to, and which bits in it.

A probe is 32 bytes of a keyed hash, read as k unsigned 16-bit positions in a block and one unsigned
32-bit number h that picks block ``h * blocks >> 32``, all big-endian. The same bytes serve slices
of every size, and bits are numbered as Redis numbers them.

The key is a secret of the filter. Without it, the author of a crawled site could craft links that
make the filter call other sites' pages seen (Gerbet, Kumar, Lauradoux 2015).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import blake2b
from struct import Struct
from typing import Final

from mmh3 import mmh3_x64_128_digest

from scrapy_bloom.filter.sizing import HASHES

SECRET_BYTES: Final = 16
SHA1_BYTES: Final = 20
PROBE_BYTES: Final = 2 * HASHES + 4

Probe = Callable[[bytes], list[int]]
"""Returns the k positions of a fingerprint, followed by h, as a new list."""


def new_secret() -> bytes:
    """Return a fresh random key for one filter."""
    return secrets.token_bytes(SECRET_BYTES)


def make_probe(secret: bytes, *, digests: bool) -> Probe:
    """Return the probe of a filter.

    :param secret: the filter's key, :data:`SECRET_BYTES` bytes.
    :param digests: whether fingerprints of 20 bytes are SHA-1 digests, as Scrapy makes them. Those
        go through MurmurHash3, which is fast, and safe here because nobody can choose the bytes
        that it sees. Everything else goes through keyed BLAKE2b, safe for bytes of any origin.
    """
    # h comes last because list.pop() is fastest at the end.
    unpack = Struct(f">{HASHES}HI").unpack
    hash_ = make_hash(secret, digests=digests)
    digest = mmh3_x64_128_digest

    def probe(fingerprint: bytes) -> list[int]:
        return [*unpack(hash_(fingerprint))]

    def probe_of_digest(fingerprint: bytes) -> list[int]:
        if len(fingerprint) != 20:  # noqa: PLR2004 - the size of SHA-1, faster than by its name
            return probe(fingerprint)
        keyed = secret + fingerprint  # as in make_hash, without another call
        return [*unpack(digest(keyed) + digest(keyed, 1))]

    return probe_of_digest if digests else probe


def make_hash(secret: bytes, *, digests: bool) -> Callable[[bytes], bytes]:
    """Return a filter's keyed hash, :data:`PROBE_BYTES` bytes.

    :param secret: as for :func:`make_probe`, like `digests`.
    """
    # Copying a keyed hasher is cheaper than keying a new one for every fingerprint.
    fresh = blake2b(key=secret, digest_size=PROBE_BYTES).copy
    digest = mmh3_x64_128_digest

    def of_any_bytes(fingerprint: bytes) -> bytes:
        hasher = fresh()
        hasher.update(fingerprint)
        return hasher.digest()

    def of_digest(fingerprint: bytes) -> bytes:
        if len(fingerprint) != SHA1_BYTES:
            return of_any_bytes(fingerprint)
        keyed = secret + fingerprint
        return digest(keyed) + digest(keyed, 1)

    return of_digest if digests else of_any_bytes
