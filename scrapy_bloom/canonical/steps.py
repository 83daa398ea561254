"""The steps that give two variants of a URL the same form, in the order in which they are taken.

A step belongs to level ``safe`` only if RFC 3986 (section 6) or the WHATWG URL standard call both
variants the same *and* Scrapy fetches both. Browsers also follow ``http://ex%61mple.com/`` and
``http://@example.com/``, but Scrapy cannot download them. No step changes such URLs: otherwise the
failed download would hide the page behind the good variant.

Steps work on the URL as Scrapy sends it. They may remove text or replace a host, port or scheme,
but they never decode text that stays in the URL. Names of parameters are decoded
once to be compared, as a server decodes them once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address
from socket import inet_aton, inet_ntoa
from typing import Literal

from scrapy_bloom.canonical.names import Names, Params
from scrapy_bloom.canonical.parts import Parts, is_route, name_and_value, without_dots
from scrapy_bloom.canonical.tracking import TRACKING_PARAMS

Tier = Literal["safe", "usual", "setting", "opt-in"]
# What a step may change of a tame URL: nothing, its port, its query, or any part of it.
Reach = Literal["none", "port", "query", "all"]


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the table.

    Attributes:
        name: as in the settings, the stats and the output of ``scrapy bloom canon``.
        tier: the level that takes this step; "setting" if a list of parameters switches it on;
            "opt-in" if a rule must name it.
        doc: one line for the documentation.
        change: returns its argument itself if there is nothing to do.
        examples: pairs of a URL before and after.
        reach: what it may change of a tame URL.
    """

    name: str
    tier: Tier
    doc: str
    change: Callable[[Parts, Params], Parts]
    examples: tuple[tuple[str, str], ...]
    reach: Reach


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
    """Write an IPv4 address as four decimal numbers (WHATWG, 3.5).

    The operating system resolves hosts for Scrapy, and reads such numbers with the same function.
    """
    if not _ends_in_number(parts.host):
        return parts
    try:
        host = inet_ntoa(inet_aton(parts.host))
    except OSError:
        return parts
    return parts._replace(host=host) if host != parts.host else parts


def ipv6(parts: Parts, _: Params) -> Parts:
    """Write an IPv6 address in its shortest form (WHATWG, 3.5)."""
    if not parts.host.startswith("["):
        return parts
    try:
        host = f"[{IPv6Address(parts.host[1:-1]).compressed}]"
    except ValueError:
        return parts
    return parts._replace(host=host) if host != parts.host else parts


_DOTS = frozenset((".", ".."))


def dot_segments(parts: Parts, _: Params) -> Parts:
    """Resolve ``.`` and ``..`` in the path (RFC 3986, 5.2.4)."""
    if "/." not in parts.path and "/%2" not in parts.path:
        return parts
    segments = parts.path.split("/")[1:]
    # WHATWG, 4.1: a dot segment may be escaped.
    kinds = [segment.replace("%2e", ".").replace("%2E", ".") for segment in segments]
    if _DOTS.isdisjoint(kinds):
        return parts
    return parts._replace(path=without_dots(segments, kinds))


def trailing_dot(parts: Parts, _: Params) -> Parts:
    """Remove the dot that ends a fully qualified host name.

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
    """Drop the parameters of the tracking list that have a value."""
    if not parts.query:
        return parts
    return _without(
        parts,
        lambda name, value: value != "" and name in _TRACKING and name not in params.keep,
    )


def drop(parts: Parts, params: Params) -> Parts:
    """Drop the parameters that settings or rules name."""
    return _without(parts, lambda name, _: name in params.drop and name not in params.keep)


def keep_only(parts: Parts, params: Params) -> Parts:
    """Drop all parameters but those that a rule names."""
    wanted = params.keep_only
    if wanted is None:
        return parts
    return _without(parts, lambda name, _: name not in wanted and name not in params.keep)


def trailing_slash(parts: Parts, _: Params) -> Parts:
    """Remove the slash at the end of a path."""
    path, end = _split_end(parts.path)
    if not path.endswith("/") or path.endswith("//") or path == "/":
        return parts
    return parts._replace(path=path[:-1] + end)


def www(parts: Parts, _: Params) -> Parts:
    """Remove a leading ``www.`` from the host."""
    host = parts.host.removeprefix("www.")
    return parts._replace(host=host) if host != parts.host and "." in host else parts


def http_https(parts: Parts, _: Params) -> Parts:
    """Write http as https if the URL has no port."""
    return parts._replace(scheme="https") if (parts.scheme, parts.port) == ("http", "") else parts


def fragment_route(parts: Parts, _: Params) -> Parts:
    """Keep a fragment that names a page of its own, as ``#!`` and ``#/`` do."""
    if parts.route or not is_route(parts.fragment):
        return parts
    return parts._replace(route=True)


def _split_end(path: str) -> tuple[str, str]:
    """Split off a lone ``;`` at the end of the path: Scrapy's canonical form has none."""
    last = path.rpartition("/")[2]
    return (path[:-1], ";") if last.find(";") == len(last) - 1 and last else (path, "")


def _without(parts: Parts, unwanted: Callable[[str, str], bool]) -> Parts:
    """Return `parts` without the parameters that are `unwanted`."""
    if not parts.query:
        return parts
    fields = parts.query.split("&")
    kept = [field for field in fields if not field or not unwanted(*name_and_value(field))]
    if len(kept) == len(fields):
        return parts
    return parts._replace(query="&".join(kept) if any(kept) else None)


_H = "http://example.com"

STEPS = (
    Step(
        "default_port",
        "safe",
        "Removes the port that the scheme stands for (RFC 3986, 6.2.3).",
        default_port,
        ((f"{_H}:80/a", f"{_H}/a"), ("https://example.com:443/", "https://example.com/")),
        "port",
    ),
    Step(
        "ipv4",
        "safe",
        "Writes numeric hosts as four decimal numbers (WHATWG).",
        ipv4,
        (
            ("http://2130706433/", "http://127.0.0.1/"),
            ("http://0x7f.1/", "http://127.0.0.1/"),
            ("http://0177.0.0.1/", "http://127.0.0.1/"),
        ),
        "none",
    ),
    Step(
        "ipv6",
        "safe",
        "Writes IPv6 addresses in their shortest form (WHATWG).",
        ipv6,
        (
            ("http://[0:0:0:0:0:0:0:1]/", "http://[::1]/"),
            ("http://[2001:db8:0::1]/", "http://[2001:db8::1]/"),
        ),
        "none",
    ),
    Step(
        "dot_segments",
        "safe",
        "Resolves `.` and `..` in the path (RFC 3986, 6.2.2.3).",
        dot_segments,
        (
            (f"{_H}/a/./b/../c", f"{_H}/a/c"),
            (f"{_H}/a/%2e%2E/b", f"{_H}/b"),
            (f"{_H}/a/..", f"{_H}/"),
        ),
        "none",
    ),
    Step(
        "trailing_dot",
        "usual",
        "Removes the dot at the end of a host name.",
        trailing_dot,
        (("http://example.com./a", f"{_H}/a"),),
        "none",
    ),
    Step(
        "tracking",
        "usual",
        "Drops parameters of the tracking list that have a value.",
        tracking,
        (
            (f"{_H}/a?id=1&utm_source=x", f"{_H}/a?id=1"),
            (f"{_H}/?gclid=x", f"{_H}/"),
            (f"{_H}/?%67clid=x&gclid=", f"{_H}/?gclid="),
        ),
        "query",
    ),
    Step(
        "drop",
        "setting",
        "Drops parameters named in `BLOOM_CANONICAL_DROP_PARAMS` or a rule's `drop`.",
        drop,
        ((f"{_H}/a?dropped=1&id=1&dropped_too", f"{_H}/a?id=1"),),
        "query",
    ),
    Step(
        "keep_only",
        "setting",
        "Drops parameters that a rule's `keep_only` does not name.",
        keep_only,
        ((f"{_H}/a?id=1&other=2", f"{_H}/a?id=1"),),
        "query",
    ),
    Step(
        "trailing_slash",
        "opt-in",
        "Removes the slash at the end of the path.",
        trailing_slash,
        ((f"{_H}/a/", f"{_H}/a"), (f"{_H}/a/?b=1", f"{_H}/a?b=1")),
        "all",
    ),
    Step(
        "www",
        "opt-in",
        "Removes `www.` from the beginning of the host.",
        www,
        (("http://www.example.com/", f"{_H}/"),),
        "all",
    ),
    Step(
        "http_https",
        "opt-in",
        "Writes http as https, unless a port is given.",
        http_https,
        ((f"{_H}/a", "https://example.com/a"),),
        "all",
    ),
    Step(
        "fragment_route",
        "opt-in",
        "Keeps a fragment that begins with `!` or `/`: it names a page of its own.",
        fragment_route,
        ((f"{_H}/#!/a", f"{_H}/#!/a"), (f"{_H}/a#/b", f"{_H}/a#/b")),
        "all",
    ),
)
