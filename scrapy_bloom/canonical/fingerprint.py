"""The public class: from a request to the bytes that stand for its page."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, Literal, NamedTuple
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.utils.request import RequestFingerprinter
from w3lib.url import canonicalize_url, safe_url_string

from scrapy_bloom.canonical import fast_path, scrapy_form
from scrapy_bloom.canonical.parts import Parts, is_route
from scrapy_bloom.canonical.pipeline import Profile, Profiles
from scrapy_bloom.canonical.rules import (
    DEFAULT_LEVEL,
    LEVELS,
    Rules,
    read_level,
    read_names,
    read_rules,
)
from scrapy_bloom.canonical.scrapy_form import Fingerprinter
from scrapy_bloom.options import CANONICAL, DROP_PARAMS, KEEP_PARAMS, RULES
from scrapy_bloom.settings import Settings

logger = logging.getLogger(__name__)

META_KEY: Final = "bloom_canonical"
SCRAPY: Final = "scrapy"
"""Stands among the steps for what Scrapy's own canonical form changes."""


class Change(NamedTuple):
    """What the steps made of a request's URL.

    Attributes:
        url: what the fingerprint was made from.
        steps: the names of the steps that changed it, in order.
    """

    url: str
    steps: tuple[str, ...]


@cache
def _trusted() -> bool:
    """Tell whether our form of Scrapy's fingerprint is the installed Scrapy's, warn if not."""
    if scrapy_form.agrees(RequestFingerprinter()):
        return True
    logger.warning(
        "The installed Scrapy or w3lib makes fingerprints in a way this version of scrapy-bloom"
        " does not know. Scrapy's own fingerprinter is asked for each request: slower, with the"
        " same outcome. Upgrading scrapy-bloom may bring the speed back."
    )
    return False


class CanonicalFingerprinter:
    """Gives requests for the same page the same bytes, however their URLs are spelled.

    Where no step changes a URL, the bytes are those of the wrapped fingerprinter. Scrapy's default
    one is not even asked: its bytes are made here, in a third of the time. Any other is asked for
    each request, with the URL that the steps made where they changed it.

    A request opts out with ``meta={"bloom_canonical": False}``, or chooses a level by its name.
    Requests with ``meta["verbatim_url"]`` are left as they are.

    >>> CanonicalFingerprinter("usual").canonical_url("http://example.com:80/a?utm_source=x&b=1")
    'http://example.com/a?b=1'

    :param level: ``scrapy`` (no step), ``safe`` (what the URL standards call the same) or ``usual``
        (also the dot at the end of a host, and tracking parameters).
    :param drop_params: parameters to drop: names, or beginnings of names followed by ``*``.
    :param keep_params: parameters that no step drops, in the same way.
    :param rules: from domain, or ``*`` for all, to a dict with any of ``level``, ``steps``,
        ``drop``, ``keep`` and ``keep_only``.
    :param wrapped: the fingerprinter to follow; Scrapy's default one if None.
    :raises SettingError: for a level, step or rule that there is not.

    Attributes:
        rules: what it goes by.
    """

    def __init__(
        self,
        level: str = DEFAULT_LEVEL,
        *,
        drop_params: Iterable[str] = (),
        keep_params: Iterable[str] = (),
        rules: Mapping[str, Mapping[str, Any]] | None = None,
        wrapped: Fingerprinter | None = None,
    ) -> None:
        self._follow(
            Rules.of(
                read_level("level", level),
                read_names("drop_params", drop_params),
                read_names("keep_params", keep_params),
                read_rules("rules", rules or {}),
            ),
            wrapped or RequestFingerprinter(),
        )

    @classmethod
    def around(cls, wrapped: Fingerprinter, rules: Rules) -> CanonicalFingerprinter:
        """Make one from rules that are read already.

        One that a project has chosen as its fingerprinter is taken as it is.
        """
        if isinstance(wrapped, CanonicalFingerprinter):
            return wrapped
        self = cls.__new__(cls)
        self._follow(rules, wrapped)
        return self

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> CanonicalFingerprinter:
        """Make one for a crawl: this class may be a project's ``REQUEST_FINGERPRINTER_CLASS``.

        The HTTP cache and media pipelines then follow the rules as well.
        """
        settings = Settings(crawler.settings)
        rules = Rules.of(
            settings[CANONICAL], settings[DROP_PARAMS], settings[KEEP_PARAMS], settings[RULES]
        )
        return cls.around(RequestFingerprinter(), rules)

    def _follow(
        self, rules: Rules, wrapped: Fingerprinter, left_out: frozenset[str] = frozenset()
    ) -> None:
        self.rules = rules
        self._wrapped = wrapped
        self._left_out = left_out
        self._profiles = Profiles(rules, left_out)
        self._identical = type(wrapped) is RequestFingerprinter and _trusted()
        self._spell = _canonical if self._identical else Parts.url
        self._kept: WeakKeyDictionary[Request, tuple[Profile, bytes, Change | None]] = (
            WeakKeyDictionary()
        )
        self._warned = False

    @property
    def wrapped(self) -> str:
        """Import path of the class that makes the bytes where no step changes a URL."""
        return f"{type(self._wrapped).__module__}.{type(self._wrapped).__qualname__}"

    @property
    def digests(self) -> bool:
        """Whether all fingerprints are SHA-1 digests."""
        return type(self._wrapped) is RequestFingerprinter

    def fingerprint(self, request: Request) -> bytes:
        """Return the bytes that stand for the page of `request`."""
        return self.resolve(request)[0]

    def canonical_url(self, url: str) -> str:
        """Return the URL that the fingerprint of a request for `url` is made from.

        :raises ValueError: if `url` has a port or an address that cannot be.
        """
        safe = safe_url_string(url)
        return [safe, *(after for _, after in self.walk(safe))][-1]

    def walk(self, url: str) -> Iterator[tuple[str, str]]:
        """Yield all that changes `url` on the way to its canonical form, with what comes of it.

        :param url: as a request has it.
        """
        profile = self._profiles.of(url, None)
        now = begun = self._begin(url, profile)
        if now != url:
            yield SCRAPY, now
        for name, parts in profile.walk(begun, self._spell):
            now = parts.url()
            yield name, now
        change = self._change(begun, profile)
        canonical = change.url if change else self._plainly(url)
        if canonical != now:
            yield SCRAPY, canonical

    def without(self, step: str) -> CanonicalFingerprinter:
        """Return one like this that does not take a step."""
        other = type(self).__new__(type(self))
        other._follow(self.rules, self._wrapped, self._left_out | {step})  # noqa: SLF001
        return other

    def resolve(self, request: Request) -> tuple[bytes, Change | None]:
        """Return the bytes that stand for `request`, and the change if a step changed its URL."""
        meta = request.meta
        level = None
        if meta:
            wish = self._read_wish(meta.get(META_KEY))
            if wish is False or meta.get("verbatim_url"):
                return self.untouched(request), None
            level = wish
        url = request.url
        profile = self._profiles.of(url, level)
        if self._identical:
            split = fast_path.split(url)
            if split and profile.leaves(split[1]):
                canonical = fast_path.join(*split) or canonicalize_url(url)
                return scrapy_form.digest(request, canonical), None
        return self._resolve_at_length(request, profile)

    def untouched(self, request: Request) -> bytes:
        """Return what the wrapped fingerprinter gives for `request` as it is."""
        if self._identical and not request.meta.get("verbatim_url"):
            return scrapy_form.digest(request, scrapy_form.canonical(request.url))
        return self._wrapped.fingerprint(request)

    def _resolve_at_length(self, request: Request, profile: Profile) -> tuple[bytes, Change | None]:
        kept = self._kept.get(request)
        if kept is None or kept[0] is not profile:
            kept = self._kept[request] = (profile, *self._compute(request, profile))
        return kept[1:]

    def _compute(self, request: Request, profile: Profile) -> tuple[bytes, Change | None]:
        begun = self._begin(request.url, profile)
        change = self._change(begun, profile)
        if self._identical:
            if change:
                return scrapy_form.digest(request, change.url), change
            plainly = self._plainly(request.url) if profile.routes else begun
            return scrapy_form.digest(request, plainly), None
        if change is None or change.url == request.url:  # or only its fragment is to be kept
            return self._wrapped.fingerprint(request), None
        return self._wrapped.fingerprint(request.replace(url=change.url)), change

    def _change(self, begun: str, profile: Profile) -> Change | None:
        """Return what the steps of `profile` make of a URL, None if they leave it."""
        steps: dict[str, None] = {}
        parts = None
        for name, parts in profile.walk(begun, self._spell):  # noqa: B007 - the last ones count
            steps[name] = None
        return Change(self._spell(parts), tuple(steps)) if parts else None

    def _begin(self, url: str, profile: Profile) -> str:
        """Return what the steps begin with."""
        if self._identical and profile.routes and is_route(url.partition("#")[2]):
            return canonicalize_url(url, keep_fragments=True)
        return self._plainly(url)

    def _plainly(self, url: str) -> str:
        """Return what stands for `url` where no step changes it.

        Only Scrapy's own fingerprinter is known to go by its canonical form; others are given the
        URL itself.
        """
        return scrapy_form.canonical(url) if self._identical else url

    def _read_wish(self, wish: object) -> str | Literal[False] | None:
        """Read the wish of one request: a level, False for no step, None for what holds."""
        if wish is None or wish is True:
            return None
        if wish is False or (isinstance(wish, str) and wish in LEVELS):
            return wish
        if not self._warned:
            self._warned = True
            logger.warning(
                "meta[%r] is %r, expected False or one of %s. No step is taken for such"
                " requests. This is said once.",
                META_KEY,
                wish,
                ", ".join(LEVELS),
            )
        return False


def _canonical(parts: Parts) -> str:
    """Return the canonical form of `parts`, with its fragment if that names a page."""
    if parts.route:
        return canonicalize_url(parts.url(), keep_fragments=True)
    return scrapy_form.canonical(parts.url())
