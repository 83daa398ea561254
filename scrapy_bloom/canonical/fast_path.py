"""Recognizes URLs that are canonical already, so that they need not be parsed.

:func:`w3lib.url.canonicalize_url` would not change most links on the web, except for the order of
their parameters. One regular expression proves it, several times faster than w3lib parses,
decodes, sorts and encodes. All other URLs go through w3lib. So a regular expression that is too
strict costs time, but never a page.
"""

from __future__ import annotations

import re
from typing import Final

# A port below 60000 that is not a default port and does not begin with 0.
_PORT = r"(?::(?!80/|443/)(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}))?"
# The last label begins with a letter: so the host is not a number and does not end with a dot.
_NAME = r"(?:[a-z0-9._-]*\.)?[a-z][a-z0-9_-]*"
# IPv4 addresses of four decimal numbers. The step `ipv4` changes all others, such as 127.1.
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_QUAD = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
# Characters that w3lib neither encodes nor decodes in a path. Not `;`: w3lib may drop it.
_PATH = r"[A-Za-z0-9._~/!$&'()*+,:=@-]*"
# Escapes in upper case of the bytes that w3lib, since 2.1, keeps escaped in a path.
_PATH_ESCAPE = r"%(?:[01][0-9A-F]|2[023F]|3[CEF]|5[CE]|60|7[BDF]|[89A-F][0-9A-F])"
# The same in a query: all but unreserved characters. (A space becomes a plus.)
_QUERY = r"[A-Za-z0-9._~+-]*"
_QUERY_ESCAPE = r"%(?:[01][0-9A-F]|2[0-9A-CF]|3[A-F]|40|5[B-E]|60|7[BCDF]|[89A-F][0-9A-F])"
_WORD = rf"{_QUERY}(?:{_QUERY_ESCAPE}{_QUERY})*"

_SLASHES_OF_AN_ORIGIN = 2

PLAIN: Final = re.compile(
    rf"(https?://(?:{_NAME}|{_QUAD}){_PORT}/{_PATH}(?:{_PATH_ESCAPE}{_PATH})*)"
    rf"(?:\?({_WORD}={_WORD}(?:&{_WORD}={_WORD})*))?"
    r"(?:#.*)?"
)
"""The URLs that are plain, apart from dot segments; see :func:`split`."""

_match = PLAIN.fullmatch


def split(url: str) -> tuple[str, str | None] | None:
    """Return the text before the query, and the query or None. Return None for other URLs.

    w3lib returns a URL that is not refused here as it is, apart from the order of parameters,
    escaped spaces in them, and the fragment. No step of level ``safe`` changes it. In the returned
    query spaces are written as w3lib writes them, as a plus.
    """
    if "/." in url:  # perhaps a dot segment
        return None
    match = _match(url)
    if match:
        query = match[2]
        return match[1], query.replace("%20", "+") if query else query
    if url.count("/") == _SLASHES_OF_AN_ORIGIN and _match(url + "/"):
        return url + "/", None
    return None


def join(base: str, query: str | None) -> str | None:
    """Return the canonical URL from the result of :func:`split`, or None if w3lib must sort it."""
    if query is None:
        return base
    if "&" in query:
        if "%" in query:
            return _join_escaped(base, query.split("&"))
        # NUL sorts before all other characters here. So this sorts by name, then by value.
        query = "&".join(sorted(query.replace("=", "\0").split("&"))).replace("\0", "=")
    return f"{base}?{query}"


def _join_escaped(base: str, fields: list[str]) -> str | None:
    """Sort fields with escapes, if no name is escaped and each name is there only once."""
    by_name = {field.partition("=")[0]: field for field in fields}
    if len(by_name) < len(fields) or any("%" in name for name in by_name):
        return None
    return f"{base}?{'&'.join([by_name[name] for name in sorted(by_name)])}"
