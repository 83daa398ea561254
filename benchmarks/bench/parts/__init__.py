"""One file for each part of the benchmarks."""

from __future__ import annotations

from typing import Final

from bench.part import Part
from bench.parts import hashing

PARTS: Final[dict[str, Part]] = {part.name: part for part in (hashing.PART,)}
"""In the order of the page."""
