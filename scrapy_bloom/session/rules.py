"""From a project's settings to the rules of canonical URLs."""

from __future__ import annotations

from scrapy_bloom.canonical.rules import Rules
from scrapy_bloom.options import CANONICAL, DROP_PARAMS, KEEP_PARAMS, RULES
from scrapy_bloom.settings import Settings


def rules_of(settings: Settings) -> Rules:
    """Return what a project's settings say of canonical URLs."""
    return Rules.of(
        settings[CANONICAL], settings[DROP_PARAMS], settings[KEEP_PARAMS], settings[RULES]
    )
