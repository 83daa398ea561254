"""The public class: from a request to the bytes that stand for its page."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from typing import Final, Literal, NamedTuple
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy.utils.request import RequestFingerprinter
from w3lib.url import canonicalize_url, safe_url_string

from scrapy_bloom.canonical import fast_path, scrapy_form
from scrapy_bloom.canonical.parts import Parts, split_url
from scrapy_bloom.canonical.pipeline import HOSTS_OWN, Pipeline, Pipelines
from scrapy_bloom.canonical.rules import LEVELS, Rules
from scrapy_bloom.canonical.scrapy_form import Fingerprinter
from scrapy_bloom.canonical.steps import STEPS

logger = logging.getLogger(__name__)

META_KEY: Final = "bloom_canonical"
SCRAPY: Final = "scrapy"
"""Stands among the names of steps for what Scrapy's own canonical form changes."""


class Change(NamedTuple):
    """What the steps did to the URL of a request.

    Attributes:
        url: the URL that the fingerprint was made from.
        steps: names of the steps that changed the URL, in order.
    """

    url: str
    steps: tuple[str, ...]


@cache
def _trusted() -> bool:
    """Return whether ``scrapy_form`` agrees with the installed Scrapy; log a warning if not."""
    if scrapy_form.agrees(RequestFingerprinter()):
        return True
    logger.warning(
        "The installed Scrapy or w3lib makes fingerprints in a way that this version of"
        " scrapy-bloom does not know. So Scrapy's own fingerprinter is asked for each request. The"
        " fingerprints are the same, but it takes longer. Upgrade scrapy-bloom to get the speed"
        " back."
    )
    return False


class CanonicalFingerprinter:
    """Gives requests for the same page the same fingerprint, whatever variant of its URL they use.

    If no step changes a URL, the fingerprint is the one that `wrapped` makes. Scrapy's default
    fingerprinter is not even asked: its bytes are computed here, in a fifth of the time. Any other
    one is asked once for each request. If steps changed the URL, it is shown the changed URL.

    The steps see the URL as Scrapy sends it and decode nothing that they keep. So the fingerprint
    of a changed URL is Scrapy's fingerprint of that changed, still encoded URL.

    :param wrapped: the fingerprinter to follow; by default Scrapy's default one.

    Attributes:
        rules: the rules that it follows.
    """

    def __init__(self, rules: Rules, wrapped: Fingerprinter | None = None) -> None:
        self.rules = rules
        self._wrapped = wrapped or RequestFingerprinter()
        self._pipelines = Pipelines(rules)
        self._identical = type(self._wrapped) is RequestFingerprinter and _trusted()
        self._kept: WeakKeyDictionary[Request, tuple[Pipeline, bytes, Change | None]] = (
            WeakKeyDictionary()
        )
        self._warned = False

    @classmethod
    def wrapping(cls, wrapped: Fingerprinter, rules: Rules) -> CanonicalFingerprinter:
        """Return a fingerprinter that follows `wrapped`, the fingerprinter of a project.

        If the project chose this class, `wrapped` is returned: it has rules of its own. If the
        project chose a subclass that overrides :meth:`fingerprint`, that method decides alone. It
        is asked for each request and shown the URL as it is.
        """
        if isinstance(wrapped, CanonicalFingerprinter):
            if type(wrapped).fingerprint is CanonicalFingerprinter.fingerprint:
                return wrapped
            own = getattr(wrapped, "rules", rules)  # its __init__ may not call ours
            rules = own.without(*(step.name for step in STEPS))
        return CanonicalFingerprinter(rules=rules, wrapped=wrapped)

    @property
    def wrapped(self) -> str:
        """Import path of the class that makes the bytes if no step changes a URL."""
        return f"{type(self._wrapped).__module__}.{type(self._wrapped).__qualname__}"

    @property
    def digests(self) -> bool:
        """Whether all fingerprints are SHA-1 digests."""
        return type(self._wrapped) is RequestFingerprinter

    def fingerprint(self, request: Request) -> bytes:
        """Return the bytes that stand for the page of `request`."""
        return self.resolve(request)[0]

    def of_url(self, url: str) -> bytes:
        """Return ``fingerprint(Request(url))``, for most URLs without making a request.

        :raises ValueError: if Scrapy cannot make a request for `url`.
        """
        return self.resolve_url(url)[0]

    def resolve_url(self, url: str) -> tuple[bytes, str]:
        """Return the fingerprint of a plain request for `url`, and the URL that it is made from.

        :raises ValueError: if Scrapy cannot make a request for `url`.
        """
        tame = fast_path.take(url) if self._identical else None
        if tame:  # it is the same in a request
            canonical, _ = self._canonicalize(url, tame, self._pipelines.of(url, None))
            return scrapy_form.digest_of_get(canonical), canonical
        request = Request(url)
        fingerprint, change = self.resolve(request)
        return fingerprint, change.url if change else self._canonical(request.url)

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
        for name, parts in self._pipelines.of(url, None).walk(url):
            now, route = parts.url(), parts.route
            yield name, now
        canonical = self._canonical(now, route=route)
        if canonical != now:
            yield SCRAPY, canonical

    def without(self, step: str) -> CanonicalFingerprinter:
        """Return a fingerprinter like this one that never takes `step`."""
        return CanonicalFingerprinter(rules=self.rules.without(step), wrapped=self._wrapped)

    def resolve(self, request: Request) -> tuple[bytes, Change | None]:
        """Return the fingerprint of `request`, and the change if steps changed the outcome."""
        meta = request.meta
        level = None
        if meta:
            wish = self._read_wish(meta.get(META_KEY))
            if wish is False or meta.get("verbatim_url"):
                return self.untouched(request), None
            level = wish
        pipeline = self._pipelines.of(request.url, level)
        if self._identical:
            tame = fast_path.take(request.url)
            canonical, change = self._canonicalize(request.url, tame, pipeline)
            return scrapy_form.digest(request, canonical), change
        return self._ask_wrapped(request, pipeline)

    def untouched(self, request: Request) -> bytes:
        """Return the fingerprint that the wrapped fingerprinter makes, without any step."""
        if self._identical and not request.meta.get("verbatim_url"):
            return scrapy_form.digest(request, fast_path.canonical(request.url))
        return self._wrapped.fingerprint(request)

    def _canonicalize(
        self, url: str, tame: fast_path.Tame | None, pipeline: Pipeline
    ) -> tuple[str, Change | None]:
        """Return the URL that Scrapy's bytes of `url` are made from, and the change by steps."""
        if tame is None:
            parts = split_url(url) if pipeline.before_scrapy else None
        else:
            user, scheme, host, port, path, query, fragment = tame
            if pipeline.is_noop_for(host, port, query):
                return fast_path.join(user, scheme, host, port, path, query), None
            parts = Parts(scheme, user, host, port[1:], path, query or None, fragment or None)
        changed, names = pipeline.before(parts) if parts else (None, ())
        if changed is None:
            return fast_path.join(*tame[:-1]) if tame else canonicalize_url(url), None
        if tame and not changed.route:  # it is tame still
            canonical = fast_path.join_parts(changed)
        else:
            canonical = self._canonical(changed.url(), route=changed.route)
        if HOSTS_OWN.issuperset(names) and canonical == fast_path.canonical(url):
            return canonical, None
        return canonical, Change(canonical, names)

    def _ask_wrapped(self, request: Request, pipeline: Pipeline) -> tuple[bytes, Change | None]:
        """Ask the project's own fingerprinter, and remember its answer while the request lives.

        It may be slow, and a redirected request is resolved several times.
        """
        kept = self._kept.get(request)
        if kept is None or kept[0] is not pipeline:
            walked = list(pipeline.walk(request.url))
            url = walked[-1][1].url() if walked else request.url
            change = None
            asked = request
            if url != request.url:
                change = Change(url, tuple(dict.fromkeys(name for name, _ in walked)))
                asked = request.replace(url=url)
            kept = self._kept[request] = (pipeline, self._wrapped.fingerprint(asked), change)
        return kept[1:]

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
                "meta[%r] is %r, expected False or one of %s. No step is taken for requests with"
                " such a value. This warning is logged once.",
                META_KEY,
                wish,
                ", ".join(LEVELS),
            )
        return False
