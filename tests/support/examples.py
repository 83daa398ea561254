"""How many examples of a property a test tries."""

from hypothesis import settings


def share_of(most):
    """Return how many are tried, if it were `most` where a hundred are usual: see `conftest`."""
    return max(1, most * settings().max_examples // 100)
