"""The steps that give two variants of a URL the same form, in the order in which they are taken.

A step belongs to level ``safe`` only if RFC 3986 (section 6) or the WHATWG URL standard call both
variants the same *and* Scrapy fetches both. Browsers also follow ``http://ex%61mple.com/`` and
``http://@example.com/``, but Scrapy cannot download them. No step changes such URLs: otherwise the
failed download would suppress the page reachable under the working spelling.

Steps work on the URL as Scrapy sends it. They may remove text or replace a host, port or scheme,
but they never decode text that stays in the URL. Names of parameters are decoded
once to be compared, as a server decodes them once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from socket import inet_aton, inet_ntoa
from typing import Literal

from scrapy_bloom.canonical.names import TRACKING_PARAMS, Names, Params
from scrapy_bloom.canonical.parts import Parts, name_and_value, without_dots

Tier = Literal["safe", "usual", "setting", "opt-in"]
# What a step may change of a tame URL: nothing, host and port, the query, or any part of it.
Reach = Literal["none", "origin", "query", "all"]


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the table.

    Attributes:
        change: a function of the parts of a URL; returns them themselves if there is nothing to do.
            Its docstring begins with what it does, and which standard allows it.
        tier: the level that takes this step; "setting" if a list of parameters switches it on;
            "opt-in" if a rule must name it.
        reach: what it may change of a tame URL.
        before: a URL that it changes.
        after: that URL afterwards.
    """

    change: Callable[[Parts, Params], Parts]
    tier: Tier
    reach: Reach
    before: str
    after: str

    @property
    def name(self) -> str:
        """The name, as in the settings, the stats and the output of ``scrapy bloom canon``."""
        return self.change.__name__

    @property
    def doc(self) -> str:
        """One line for the documentation."""
        return (self.change.__doc__ or "").partition("\n")[0]


def www(parts: Parts, _: Params) -> Parts:
    """Remove `www.` from the beginning of the host."""
    host = parts.host
    while host.startswith("www.") and "." in host[len("www.") :].rstrip("."):
        host = host.removeprefix("www.")
    return parts._replace(host=host) if host != parts.host else parts


_is_plain_host = re.compile(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]").fullmatch


def default_port(parts: Parts, _: Params) -> Parts:
    """Remove the port that the scheme stands for (RFC 3986, 6.2.3).

    Of other hosts, such as ``e.com`` and a space, Scrapy may fetch the URL without a port only.
    """
    if not parts.port or parts.port != parts.default_port or not _is_plain_host(parts.host):
        return parts
    return parts._replace(port="")


_is_number = re.compile(r"(?:[0-9a-z-]+\.)*(?:[0-9]+|0x[0-9a-f]*)").fullmatch


def _ends_in_number(host: str) -> bool:
    return host.rpartition(".")[2][:1].isdigit() and _is_number(host) is not None


def ipv4(parts: Parts, _: Params) -> Parts:
    """Write an IPv4 address as four decimal numbers (WHATWG URL, 3.5).

    The operating system resolves hosts for Scrapy, and reads such numbers with the same function.
    """
    if not _ends_in_number(parts.host):
        return parts
    try:
        host = inet_ntoa(inet_aton(parts.host))
    except OSError:
        return parts
    return parts._replace(host=host) if host != parts.host else parts


_DOTS = frozenset((".", ".."))


def dot_segments(parts: Parts, _: Params) -> Parts:
    """Resolve `.` and `..` in the path (RFC 3986, 5.2.4; WHATWG URL, 4.1).

    Scrapy's canonical form does, too; but `trailing_slash` has to see the end that comes out.
    """
    if "/." not in parts.path and "/%2" not in parts.path:
        return parts
    segments = parts.path.split("/")[1:]
    # WHATWG, 4.1: a dot segment may be escaped.
    kinds = [segment.replace("%2e", ".").replace("%2E", ".") for segment in segments]
    if _DOTS.isdisjoint(kinds):
        return parts
    return parts._replace(path=without_dots(segments, kinds))


def trailing_dot(parts: Parts, _: Params) -> Parts:
    """Remove the dot at the end of a host name (RFC 1034, 3.1).

    Names without another dot, such as ``localhost``, may be known without it only.
    """
    if not parts.host.endswith("."):
        return parts
    host = parts.host[:-1]
    if "." not in host or host.endswith(".") or _ends_in_number(host):
        return parts  # resolvers refuse "127.0.0.1." and the like
    return parts._replace(host=host)


_TRACKING = Names.of(TRACKING_PARAMS)


def tracking(parts: Parts, params: Params) -> Parts:
    """Drop parameters of the tracking list that have a value."""
    return _without(
        parts, lambda name, value: value != "" and name in _TRACKING and name not in params.keep
    )


def drop(parts: Parts, params: Params) -> Parts:
    """Drop parameters that the rules name under `drop`."""
    return _without(parts, lambda name, _: name in params.drop and name not in params.keep)


def keep_only(parts: Parts, params: Params) -> Parts:
    """Drop parameters that a rule's `keep_only` does not name."""
    wanted = params.keep_only
    if wanted is None:
        return parts
    return _without(parts, lambda name, _: name not in wanted and name not in params.keep)


def trailing_slash(parts: Parts, _: Params) -> Parts:
    """Remove the slash at the end of the path."""
    path = parts.path
    # A lone `;` behind the slash, which Scrapy's canonical form drops, goes with it.
    while (end := _slash_at_end(path)) and end.start():
        path = path[: end.start()]
    return parts._replace(path=path) if path != parts.path else parts


_slash_at_end = re.compile(r"(?<!/)/;?\Z").search


def http_https(parts: Parts, _: Params) -> Parts:
    """Write http as https, unless a port is given."""
    return parts._replace(scheme="https") if (parts.scheme, parts.port) == ("http", "") else parts


def fragment_route(parts: Parts, _: Params) -> Parts:
    """Keep a fragment that begins with `!` or `/`: it names a page of its own."""
    if parts.route or not (parts.fragment or "").startswith(("!", "/")):
        return parts
    return parts._replace(route=True)


def _without(parts: Parts, unwanted: Callable[[str, str], bool]) -> Parts:
    """Return `parts` without the parameters that are `unwanted`."""
    if not parts.query:
        return parts
    fields = parts.query.split("&")
    kept = [field for field in fields if not field or not unwanted(*name_and_value(field))]
    if len(kept) == len(fields):
        return parts
    return parts.with_query("&".join(kept) if any(kept) else None)


_H = "http://example.com"

STEPS = (
    Step(www, "opt-in", "all", "http://www.example.com/", f"{_H}/"),
    Step(default_port, "safe", "origin", f"{_H}:80/a", f"{_H}/a"),
    Step(ipv4, "safe", "none", "http://2130706433/", "http://127.0.0.1/"),
    Step(dot_segments, "safe", "none", f"{_H}/a/./b/../c", f"{_H}/a/c"),
    Step(trailing_dot, "usual", "origin", "http://example.com./a", f"{_H}/a"),
    Step(tracking, "usual", "query", f"{_H}/a?id=1&utm_source=x", f"{_H}/a?id=1"),
    Step(drop, "setting", "query", f"{_H}/a?dropped=1&id=1&dropped_too", f"{_H}/a?id=1"),
    Step(keep_only, "setting", "query", f"{_H}/a?id=1&other=2", f"{_H}/a?id=1"),
    Step(trailing_slash, "opt-in", "all", f"{_H}/a/", f"{_H}/a"),
    Step(http_https, "opt-in", "all", f"{_H}/a", "https://example.com/a"),
    Step(fragment_route, "opt-in", "all", f"{_H}/#!/a", f"{_H}/#!/a"),
)
"""The table, in the order in which the steps are taken: none makes work for one before it."""
