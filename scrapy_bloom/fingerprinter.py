"""The fingerprinter that a project may choose for all of Scrapy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from scrapy.utils.request import RequestFingerprinterProtocol

from scrapy_bloom.canonical import fingerprint
from scrapy_bloom.canonical.rules import (
    DEFAULT_LEVEL,
    Rules,
    read_level,
    read_names,
    read_rules,
)
from scrapy_bloom.settings import Settings

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self


class CanonicalFingerprinter(fingerprint.CanonicalFingerprinter):
    """Gives requests for the same page the same fingerprint, whatever variant of its URL they use.

    If no step changes a URL, the fingerprint is that of `wrapped`. The bytes of Scrapy's default
    fingerprinter are computed here, in a fifth of the time; any other fingerprinter is called for
    each request, with the changed URL if there is one.

    The steps see the URL as Scrapy sends it and do not decode what they keep.

    ``meta={"bloom_canonical": False}`` and ``meta["verbatim_url"]`` disable the steps for a
    request; ``bloom_canonical`` may also name a level.

    >>> CanonicalFingerprinter("usual").canonical_url("http://example.com:80/a?utm_source=x&b=1")
    'http://example.com/a?b=1'

    :param level: ``scrapy`` (no step), ``safe`` (what the URL standards call equivalent) or
        ``usual`` (also the dot at the end of a host, and tracking parameters).
    :param drop_params: names of parameters to drop; a trailing ``*`` stands for the rest of a name.
    :param keep_params: names of parameters that no step drops, in the same form.
    :param rules: a dict from domain, or ``*`` for all, to a dict with any of ``level``, ``steps``,
        ``drop``, ``keep`` and ``keep_only``. Or rules that were already read; then the other
        parameters are ignored.
    :param wrapped: the fingerprinter to use; by default Scrapy's.
    :raises SettingError: if a level, step or rule does not exist.

    Attributes:
        rules: the rules that it applies.
    """

    def __init__(
        self,
        level: str = DEFAULT_LEVEL,
        *,
        drop_params: Iterable[str] = (),
        keep_params: Iterable[str] = (),
        rules: Mapping[str, Mapping[str, Any]] | Rules | None = None,
        wrapped: RequestFingerprinterProtocol | None = None,
    ) -> None:
        if not isinstance(rules, Rules):
            rules = Rules.of(
                read_level("level", level),
                read_names("drop_params", drop_params),
                read_names("keep_params", keep_params),
                read_rules("rules", {} if rules is None else rules),
            )
        super().__init__(rules, wrapped)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the fingerprinter of a crawl, with the rules of its settings.

        This lets a project use the class as its ``REQUEST_FINGERPRINTER_CLASS``: the HTTP cache and
        the media pipelines then follow the rules as well.

        :raises SettingError: if a setting cannot be used.
        """
        return cls(rules=Settings.of(crawler).rules)
