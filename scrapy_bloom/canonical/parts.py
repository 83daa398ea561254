"""A URL in its parts, for the steps to change."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote_plus, urlsplit

_DEFAULT_PORTS = {"http": "80", "https": "443", "ftp": "21", "ws": "80", "wss": "443"}


class Parts(NamedTuple):
    """A hierarchical URL as Scrapy keeps it in a request.

    Attributes:
        scheme: in lower case.
        userinfo: user and password with their ``@``, or "".
        host: in lower case, an IPv6 address with its brackets.
        port: digits, or "" for none.
        path: with its escapes, may be "".
        query: with its escapes, without the ``?``.
        fragment: without the ``#``. Canonical forms are without one ...
        route: ... unless this says that the fragment names a page of its own.
    """

    scheme: str
    userinfo: str
    host: str
    port: str
    path: str
    query: str
    fragment: str
    route: bool = False

    @property
    def default_port(self) -> str | None:
        """The port that the scheme stands for, None where there is none."""
        return _DEFAULT_PORTS.get(self.scheme)

    def url(self) -> str:
        """Put the parts together again."""
        port = f":{self.port}" if self.port else ""
        query = f"?{self.query}" if self.query else ""
        fragment = f"#{self.fragment}" if self.fragment else ""
        return f"{self.scheme}://{self.userinfo}{self.host}{port}{self.path}{query}{fragment}"


def take_apart(url: str) -> Parts | None:
    """Return the parts of `url`, None for a URL without host or one that no parser accepts."""
    try:
        scheme, netloc, path, query, fragment = urlsplit(url)
    except ValueError:
        return None
    if scheme not in _DEFAULT_PORTS or not netloc:
        return None
    user, at, address = netloc.rpartition("@")
    if address.startswith("["):
        host, bracket, port = address.partition("]")
        host, port = host + bracket, port.removeprefix(":")
    else:
        host, _, port = address.partition(":")
    return Parts(scheme, user + at, host.lower(), port, path, query, fragment)


def is_route(fragment: str) -> bool:
    """Return whether a fragment looks like the name of a page of its own."""
    return fragment.startswith(("!", "/"))


def name_and_value(field: str) -> tuple[str, str]:
    """Return name and value of one ``name=value`` of a query, the name unquoted."""
    name, _, value = field.partition("=")
    return (unquote_plus(name) if "%" in name or "+" in name else name), value
