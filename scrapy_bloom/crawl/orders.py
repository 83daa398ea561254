"""Signals with which functions and middlewares turn to the open filter or frontier of a crawl."""

from __future__ import annotations

from typing import Final

hold_slot: Final = object()
"""Sent with a ``request``, whose download slot is to be left alone, and for how many ``seconds``.

A frontier answers True.
"""

forget_page: Final = object()
"""Sent with a ``request``, whose page is to be forgotten; the answer is whether it was known."""
