"""From a request to the bytes that stand for its page."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from scrapy import Request
from scrapy.utils.request import RequestFingerprinter, RequestFingerprinterProtocol
from w3lib.url import canonicalize_url, safe_url_string

from scrapy_bloom.canonical import fast_path, scrapy_form
from scrapy_bloom.canonical.parts import Parts, split_url
from scrapy_bloom.canonical.pipeline import pipelines
from scrapy_bloom.canonical.rules import (
    DEFAULT_LEVEL,
    LEVELS,
    Rules,
    read_level,
    read_names,
    read_rules,
)
from scrapy_bloom.settings import Settings

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)

META_KEY: Final = "bloom_canonical"
SCRAPY: Final = "scrapy"
"""Stands among the names of steps for what Scrapy's own canonical form changes."""


@cache
def _trusted() -> bool:
    """Return whether ``scrapy_form`` agrees with the installed Scrapy; log a warning if not."""
    if scrapy_form.agrees(RequestFingerprinter()):
        return True
    logger.warning(
        "This version of scrapy-bloom does not know how the installed Scrapy or w3lib makes"
        " fingerprints, and asks Scrapy's own fingerprinter instead. The fingerprints are the same,"
        " but take longer. Upgrade scrapy-bloom to get the speed back."
    )
    return False


class CanonicalRequestFingerprinter:
    """Gives requests for the same page the same fingerprint, whatever variant of its URL they use.

    If no step changes a URL, the fingerprint is that of `wrapped`. The bytes of Scrapy's default
    fingerprinter are computed here, in a fifth of the time; any other fingerprinter is called for
    each request, with the changed URL if there is one.

    The steps see the URL as Scrapy sends it and do not decode what they keep.

    ``meta={"bloom_canonical": False}`` and ``meta["verbatim_url"]`` disable the steps for a
    request; ``bloom_canonical`` may also name a level.

    >>> CanonicalRequestFingerprinter("usual").canonical_url("http://example.com:80/a?utm_source=x&b=1")
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
        self.rules = rules
        self._wrapped = wrapped or RequestFingerprinter()
        self._pipeline_of = pipelines(rules)
        self._everywhere = None if rules.domains else self._pipeline_of("", None)
        self._identical = type(self._wrapped) is RequestFingerprinter and _trusted()
        self._takes_steps = True
        self._warned = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the fingerprinter of a crawl, with the rules of its settings.

        This lets a project use the class as its ``REQUEST_FINGERPRINTER_CLASS``: the HTTP cache and
        the media pipelines then follow the rules as well.

        :raises SettingError: if a setting cannot be used.
        """
        return cls(rules=Settings.of(crawler).rules)

    @classmethod
    def wrapping(
        cls, wrapped: RequestFingerprinterProtocol, rules: Rules
    ) -> CanonicalRequestFingerprinter:
        """Return a fingerprinter that follows `wrapped`, the fingerprinter of a project.

        If the project chose this class, `wrapped` is returned: it has rules of its own. If the
        project chose a subclass that overrides :meth:`fingerprint`, that method decides alone. It
        is asked for each request and shown the URL as it is.
        """
        if isinstance(wrapped, CanonicalRequestFingerprinter):
            if type(wrapped).fingerprint is CanonicalRequestFingerprinter.fingerprint:
                return wrapped
            alone = CanonicalRequestFingerprinter(
                rules=getattr(wrapped, "rules", rules), wrapped=wrapped
            )
            alone._takes_steps = False
            return alone
        return CanonicalRequestFingerprinter(rules=rules, wrapped=wrapped)

    @property
    def wrapped(self) -> str:
        """Import path of the class that makes the bytes if no step changes a URL."""
        return f"{type(self._wrapped).__module__}.{type(self._wrapped).__qualname__}"

    @property
    def digests(self) -> bool:
        """Whether all fingerprints are SHA-1 digests."""
        return type(self._wrapped) is RequestFingerprinter

    def canonical_url(self, url: str) -> str:
        """Return the URL that the fingerprint of a request for `url` is made from.

        :raises ValueError: if the port or the address in `url` is impossible.
        """
        safe = safe_url_string(url)
        return [safe, *(after for _, after in self.walk(safe))][-1]

    def walk(self, url: str) -> Iterator[tuple[str, str]]:
        """Yield the name of each step that changes `url`, and the URL after it.

        :param url: as a request has it.
        """
        now, route = url, False
        for name, parts in self._take(split_url(url), None):
            now, route = parts.url(), parts.route
            yield name, now
        canonical = self._canonical(now, route=route)
        if canonical != now:
            yield SCRAPY, canonical

    def fingerprint(self, request: Request) -> bytes:
        """Return the bytes that stand for the page of `request`."""
        meta = request.meta
        level = None
        if meta and (META_KEY in meta or "verbatim_url" in meta):
            wish = self._read_wish(meta.get(META_KEY))
            if wish is False or meta.get("verbatim_url"):
                return self._ask(request)
            level = wish
        if self._identical:
            return scrapy_form.digest(request, self._canonicalize(request.url, level))
        taken = self._take(split_url(request.url), level)
        url = taken[-1][1].url() if taken else request.url
        return self._ask(request if url == request.url else request.replace(url=url))

    def _ask(self, request: Request) -> bytes:
        """Return what the wrapped fingerprinter makes.

        :raises TypeError: if that is not bytes-like.
        """
        return bytes(memoryview(self._wrapped.fingerprint(request)))

    def _canonicalize(self, url: str, level: str | None) -> str:
        """Return the URL that Scrapy hashes for `url`."""
        tame = fast_path.take(url)
        if tame is None:
            parts = split_url(url)
        else:
            scheme, host, port, path, query, fragment = tame
            pipeline = None if level else self._everywhere
            if pipeline is None:
                pipeline = self._pipeline_of(host, level)
            if not pipeline.any_part:
                if port or host[-1] == ".":
                    host, port = pipeline.origin(scheme, host, port)
                query = query and pipeline.drop(query)
                return fast_path.join(scheme, host, port, path, query)
            parts = Parts(scheme, "", host, port[1:], path, query or None, fragment or None)
        taken = self._take(parts, level)
        if not taken:
            return fast_path.join(*tame[:-1]) if tame else canonicalize_url(url)
        changed = taken[-1][1]
        if tame and not changed.route:  # it is tame still
            return fast_path.join_parts(changed)
        return self._canonical(changed.url(), route=changed.route)

    def _take(self, parts: Parts | None, level: str | None) -> list[tuple[str, Parts]]:
        if parts is None or not self._takes_steps:
            return []
        return self._pipeline_of(parts.host, level).take(parts)

    def _canonical(self, url: str, *, route: bool = False) -> str:
        """Return the URL that the wrapped fingerprinter makes its bytes from.

        Only Scrapy's is known to use its canonical form. Others are given the URL itself.
        """
        if not self._identical:
            return url
        return canonicalize_url(url, keep_fragments=True) if route else fast_path.canonical(url)

    def _read_wish(self, wish: object) -> str | Literal[False] | None:
        """Read what a request asks for: a level, False for no step, None for the usual ones."""
        if wish is None or wish is True:
            return None
        if wish is False or (isinstance(wish, str) and wish in LEVELS):
            return wish
        if not self._warned:
            self._warned = True
            logger.warning(
                "meta[%r] is %r, expected False or one of %s. No step is applied to such requests."
                " This warning is logged once.",
                META_KEY,
                wish,
                ", ".join(LEVELS),
            )
        return False
