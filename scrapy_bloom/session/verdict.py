"""What the filter can say about a request."""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """What the filter says about one request. Only those that are ``SEEN`` are dropped."""

    NEW = "new"
    """Not seen before."""
    SEEN = "seen"
    """Seen before."""
    REDIRECT_EXEMPT = "redirect_exempt"
    """Seen before, but only as part of the request's own chain of redirects."""
    ERROR = "error"
    """Not checked, because something failed."""

    __hash__ = object.__hash__  # Enum's own is slower, and each request needs it
