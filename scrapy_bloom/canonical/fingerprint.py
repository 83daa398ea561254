"""The public class: from a request to the bytes that stand for its page."""

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy.utils.request import RequestFingerprinter
from w3lib.url import canonicalize_url, safe_url_string

from scrapy_bloom.canonical import identical, plain
from scrapy_bloom.canonical.identical import Fingerprinter
from scrapy_bloom.canonical.parts import Parts
from scrapy_bloom.canonical.profile import Profile, Profiles
from scrapy_bloom.canonical.rules import (
    DEFAULT_LEVEL,
    EVERYWHERE,
    LEVELS,
    Rule,
    check_level,
    check_names,
    read_rules,
)

logger = logging.getLogger(__name__)

META_KEY = "bloom_canonical"


class Change(NamedTuple):
    """What the steps made of a request's URL.

    Attributes:
        url: What the fingerprint was made from.
        steps: The names of the steps that changed it, in order.

    """

    url: str
    steps: tuple[str, ...]


@cache
def _trusted() -> bool:
    """Tell whether our form of Scrapy's fingerprint is the installed Scrapy's, warn if not."""
    if identical.agrees(RequestFingerprinter()):
        return True
    logger.warning(
        "The installed Scrapy or w3lib makes fingerprints in a way this version of scrapy-bloom"
        " does not know. Scrapy's own fingerprinter is asked for each request: slower, with the"
        " same outcome. Upgrading scrapy-bloom may bring the speed back."
    )
    return False


class CanonicalFingerprinter:
    """Gives requests for the same page the same bytes, however their URLs are spelled.

    Where no step changes a URL, the bytes are those of the wrapped fingerprinter. For Scrapy's
    default one they are computed here, in a fraction of the time; any other is asked for each
    request, with the URL that the steps made where they changed it.

    A request opts out with ``meta={"bloom_canonical": False}`` or chooses a level by its name.
    Requests with ``meta["verbatim_url"]`` are left as they are.

    Args:
        level: "scrapy" (no step), "safe" (the default: what the URL standards call the same) or
            "usual" (also the dot at the end of a host and tracking parameters).
        drop_params: Names of parameters to drop, or beginnings of names followed by ``*``.
        keep_params: Names of parameters that no step drops, in the same way.
        rules: As in ``BLOOM_CANONICAL_RULES``: domain, or ``*`` for all, to a dict of ``level``,
            ``steps``, ``drop``, ``keep`` and ``keep_only``.
        wrapped: The fingerprinter to give way to, by default Scrapy's.

    Raises:
        ValueError: For a level, step or rule there is not, naming the setting.

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
        self.rules = read_rules(rules or {}, "BLOOM_CANONICAL_RULES")
        self.rule = Rule(
            level=check_level(level, "BLOOM_CANONICAL"),
            drop=check_names(drop_params, "BLOOM_CANONICAL_DROP_PARAMS"),
            keep=check_names(keep_params, "BLOOM_CANONICAL_KEEP_PARAMS"),
        ).plus(self.rules.get(EVERYWHERE, Rule()))
        self._profiles = Profiles(self.rule, self.rules)
        self._wrapped = wrapped or RequestFingerprinter()
        self._identical = type(self._wrapped) is RequestFingerprinter and _trusted()
        self._spell = _canonical if self._identical else Parts.url
        self._kept: WeakKeyDictionary[Request, tuple[Profile, bytes, Change | None]] = (
            WeakKeyDictionary()
        )
        self._warned = False

    def fingerprint(self, request: Request) -> bytes:
        """Return the bytes that stand for the page of *request*."""
        return self.resolve(request)[0]

    def canonical_url(self, url: str) -> str:
        """Return the URL that the fingerprint of a request for *url* is made from.

        Raises:
            ValueError: If no request can be made for *url*, as w3lib says.

        """
        safe = safe_url_string(url)
        change = self._change(safe, self._profiles.of(safe, None))
        return change.url if change else canonicalize_url(safe)

    def resolve(self, request: Request) -> tuple[bytes, Change | None]:
        """Return the bytes that stand for *request*, and the change if a step changed its URL."""
        meta = request.meta
        level = None
        if meta:
            level = self._level(meta.get(META_KEY))
            if level is False or meta.get("verbatim_url"):
                return self.untouched(request), None
        url = request.url
        profile = self._profiles.of(url, level)
        if self._identical:
            split = plain.split(url)
            if split and profile.leaves(split[1]):
                canonical = plain.join(*split) or canonicalize_url(url)
                return identical.digest(request, canonical), None
        return self._resolve_at_length(request, profile)

    def untouched(self, request: Request) -> bytes:
        """Return what the wrapped fingerprinter gives for *request* as it is."""
        if self._identical and not request.meta.get("verbatim_url"):
            return identical.digest(request, identical.canonical(request.url))
        return self._wrapped.fingerprint(request)

    def _resolve_at_length(
        self, request: Request, profile: Profile
    ) -> tuple[bytes, Change | None]:
        kept = self._kept.get(request)
        if kept is None or kept[0] is not profile:
            kept = self._kept[request] = (profile, *self._compute(request, profile))
        return kept[1:]

    def _compute(self, request: Request, profile: Profile) -> tuple[bytes, Change | None]:
        change = self._change(request.url, profile)
        if change is None or change.url == request.url:
            return self.untouched(request), None
        if self._identical:
            return identical.digest(request, change.url), change
        return self._wrapped.fingerprint(request.replace(url=change.url)), change

    def _change(self, url: str, profile: Profile) -> Change | None:
        """Return what the steps of *profile* make of *url*, None if they leave it."""
        steps: dict[str, None] = {}
        parts = None
        for name, parts in profile.walk(url, self._spell):  # noqa: B007 - the last ones count
            steps[name] = None
        return Change(self._spell(parts), tuple(steps)) if parts else None

    def _level(self, wish: object) -> str | Literal[False] | None:
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
    """Return the canonical form of *parts*, with its fragment if that names a page."""
    if parts.route:
        return canonicalize_url(parts.url(), keep_fragments=True)
    return identical.canonical(parts.url())
