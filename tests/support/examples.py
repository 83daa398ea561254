"""How many examples of a property a test tries."""

from hypothesis import settings


def share_of(most):
    """Return how many of so many are tried: a fifth of them in `make check`, else all."""
    return max(1, most * settings().max_examples // 100)
