"""Scrapy's canonical form of a tame URL, without w3lib.

Nearly every link is tame: its host is a plain name or address, and what w3lib does to its path and
query goes by one character or escape after the other. One regular expression takes it apart, and a
few more find what is left to do, several times faster than w3lib parses, decodes, sorts and
encodes. All other URLs go through w3lib. So an expression that is too strict costs time, but never
a page.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote_plus

from w3lib.url import canonicalize_url

from scrapy_bloom.canonical.parts import Parts, without_dots

# The last label begins with a letter: so the host is not a number.
_NAME = r"(?:[A-Za-z0-9._-]*\.)?[A-Za-z][A-Za-z0-9_-]*\.?"
# IPv4 addresses of four decimal numbers. The step `ipv4` changes all others, such as 127.1.
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_QUAD = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
# A port below 60000 that does not begin with 0.
_PORT = r":(?:[1-9][0-9]{0,3}|[1-5][0-9]{4})"
# Characters that Scrapy leaves as they are when it makes a request, and any %.
_SAFE = r"A-Za-z0-9._~/!$&'()*+,:;=@%-"
_QUERY = r"!-\"$-~"

TAME: Final = re.compile(
    rf"([Hh][Tt][Tt][Pp][Ss]?)://({_NAME}|{_QUAD})({_PORT})?(/[{_SAFE}]*)?"
    rf"(?:\?([{_QUERY}]*))?(?:#([{_SAFE}?]*))?"
)
"""The URLs that are tame. The groups are those of :data:`Tame`."""

# Escapes that w3lib never changes: in a path, and in a query.
_PATH_ESCAPE = r"(?:[01][0-9A-F]|2[023F]|3[CEF]|5[CE]|60|7[BDF]|[89A-F][0-9A-F])"
_QUERY_ESCAPE = r"(?:[01][0-9A-F]|2[1-9A-CF]|3[A-F]|40|5[B-E]|60|7[BCDF]|[89A-F][0-9A-F])"
# A query that w3lib leaves as it is, but for the order of its fields.
_WORD = rf"[A-Za-z0-9._~+-]*(?:%{_QUERY_ESCAPE}[A-Za-z0-9._~+-]*)*"
_is_settled = re.compile(rf"{_WORD}={_WORD}(?:&{_WORD}={_WORD})*").fullmatch
# What w3lib may change.
_in_path = re.compile(rf"%(?!{_PATH_ESCAPE})[0-9A-Fa-f]{{2}}").sub
_in_query = re.compile(rf"%(?!{_QUERY_ESCAPE})(?:[0-9A-Fa-f]{{2}})?|[^A-Za-z0-9._~+&=%-]").sub
_words = re.compile(r"%..|\+|[^%+]+").findall


def _spelled(canonical: list[str]) -> dict[str, str]:
    """Return the canonical form of each byte's escape, however its digits are written."""
    return {
        f"%{high}{low}": form
        for escape, form in zip(_ESCAPES, canonical, strict=True)
        for high in (escape[1], escape[1].lower())
        for low in (escape[2], escape[2].lower())
    }


_ESCAPES = [f"%{byte:02X}" for byte in range(256)]
# Which escapes of a path w3lib decodes it says itself. It decodes none to "/".
_ANSWER = canonicalize_url(f"http://a/-{'/-'.join(_ESCAPES)}").split("/-")[1:]
_OF_PATH = _spelled(_ANSWER if len(_ANSWER) == len(_ESCAPES) else _ESCAPES)
_OF_QUERY = _spelled([quote_plus(bytes([byte])) for byte in range(256)])
_OF_QUERY |= {char: quote_plus(char) for char in map(chr, range(0x21, 0x7F))}
_DECODED = {"+": " "} | {escape: chr(byte) for byte, escape in enumerate(_ESCAPES)}

_match = TAME.fullmatch

Tame = tuple[str, str, str, str, str, str]
"""Scheme, host, port with its colon, path, query, fragment; "" for none."""


def take(url: str) -> Tame | None:
    """Return a URL in its parts, None if it is not tame.

    Scheme and host are in lower case, and the query is canonical.
    """
    match = _match(url)
    if match is None:
        return None
    scheme, host, port, path, query, fragment = match.groups("")
    if query:
        query = canonical_query(query)
    return scheme.lower(), host.lower(), port, path, query, fragment


def canonical(url: str) -> str:
    """Return ``w3lib.url.canonicalize_url(url)`` for the URL of a request."""
    tame = take(url)
    if tame is None:
        return canonicalize_url(url)
    return join(*tame[:-1])


def join(scheme: str, host: str, port: str, path: str, query: str) -> str:
    """Return the canonical URL for the parts that :func:`take` returns."""
    if "%" in path or ";" in path or "/." in path:
        path = _canonical_path(path)
    if query:
        return f"{scheme}://{host}{port}{path or '/'}?{query}"
    return f"{scheme}://{host}{port}{path or '/'}"


def join_parts(parts: Parts) -> str:
    """Return the same for a tame URL that steps have changed."""
    port = f":{parts.port}" if parts.port else ""
    return join(parts.scheme, parts.host, port, parts.path, parts.query or "")


def _canonical_path(path: str) -> str:
    """Return a tame path as w3lib does: it keeps what follows a ``;`` in the last segment."""
    rest = ""
    if ";" in path and (cut := path.find(";", path.rfind("/"))) >= 0:
        path, rest = path[:cut], path[cut:]
    if "%" in path:
        path = _in_path(lambda match: _OF_PATH[match[0]], path)
    if "/." in path:
        segments = path.split("/")[1:]
        path = without_dots(segments, segments)
    return path if rest == ";" else path + rest


def canonical_query(query: str) -> str:
    """Return a tame query as w3lib does: each field with one ``=``, escaped alike and sorted."""
    if "%20" in query:
        query = query.replace("%20", "+")
    if not _is_settled(query):
        fields = _in_query(lambda match: _OF_QUERY[match[0]], query).split("&")
        query = "&".join(
            [field if field.count("=") == 1 else _with_one(field) for field in fields if field]
        )
    return _in_order(query) if "&" in query else query


def _with_one(field: str) -> str:
    """Return a field with its first ``=`` alone, or one at its end."""
    name, _, value = field.partition("=")
    return f"{name}={value.replace('=', '%3D')}"


def _in_order(query: str) -> str:
    """Sort fields by decoded name, then by decoded value."""
    if "%" not in query:
        # NUL sorts before all other characters here. So this sorts by name, then by value.
        return "&".join(sorted(query.replace("=", "\0").split("&"))).replace("\0", "=")
    fields = query.split("&")
    by_name = {field.partition("=")[0]: field for field in fields}
    if len(by_name) == len(fields) and "%" not in "".join(by_name):
        return "&".join([by_name[name] for name in sorted(by_name)])
    return "&".join(sorted(fields, key=_decoded))


def _decoded(field: str) -> tuple[str, str]:
    name, _, value = field.partition("=")
    return _decode(name), _decode(value)


def _decode(word: str) -> str:
    if "%" not in word and "+" not in word:
        return word
    return "".join([_DECODED.get(token, token) for token in _words(word)])
