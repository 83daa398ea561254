"""The guard: which URLs are canonical as they stand, so that nothing has to be parsed.

Most links on the web are spelled as :func:`w3lib.url.canonicalize_url` would spell them. One
regular expression proves it, several times faster than parsing, unquoting, sorting and quoting
again. What it cannot prove goes through w3lib; being too strict costs time, never a page.
"""

from __future__ import annotations

import re
from typing import Final

# The port is neither the default one nor padded with zeros, and below 60000.
_PORT = r"(?::(?!80/|443/)(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}))?"
# The last label begins with a letter: the host is no number in disguise, no dot ends it.
_NAME = r"(?:[a-z0-9._-]*\.)?[a-z][a-z0-9_-]*"
# Dotted quads as everybody writes them; `127.1` and the like are for the steps.
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_QUAD = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
# Characters that w3lib neither quotes nor unquotes in a path. No `;`: it drops an empty one.
_PATH = r"[A-Za-z0-9._~/!$&'()*+,:=@-]*"
# Upper-case escapes of the bytes that w3lib, since 2.1, keeps escaped in a path ...
_PATH_ESCAPE = r"%(?:[01][0-9A-F]|2[023F]|3[CEF]|5[CE]|60|7[BDF]|[89A-F][0-9A-F])"
# ... and in a query, where all but unreserved characters is; a space, though, becomes a plus.
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
    """Return what stands before the query and the query (or None) of a plain URL, else None.

    Plain means: apart from the order of parameters, escaped spaces in them and the fragment, w3lib
    returns `url` as it is, and no step of level ``safe`` changes it. Spaces are returned as w3lib
    writes them, as a plus.
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
    """Return the canonical URL of what :func:`split` gave, or None where w3lib has to sort."""
    if query is None:
        return base
    if "&" in query:
        if "%" in query:
            return _join_escaped(base, query.split("&"))
        # NUL is below every character that can stand here: sorts by name, then by value.
        query = "&".join(sorted(query.replace("=", "\0").split("&"))).replace("\0", "=")
    return f"{base}?{query}"


def _join_escaped(base: str, fields: list[str]) -> str | None:
    """Join where something is escaped: values do not matter if each plain name stands once."""
    by_name = {field.partition("=")[0]: field for field in fields}
    if len(by_name) < len(fields) or any("%" in name for name in by_name):
        return None
    return f"{base}?{'&'.join([by_name[name] for name in sorted(by_name)])}"
