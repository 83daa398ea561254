"""Whose a crawl is: the class of its spider, and the arguments that it was given."""

from __future__ import annotations

import inspect
import logging
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scrapy import Spider

logger = logging.getLogger(__name__)

_THEIRS: Final = ("scrapy", "scrapy_redis")
"""Packages whose spiders set each argument as an attribute."""

_PLAIN: Final = (str, int, float, type(None))
_SECRET: Final = re.compile("passw|secret|token|api_?key|credential", re.IGNORECASE)
_MOST: Final = 200  # characters of an argument that are noted
_SHOWN: Final = 50


def writer_of(spider: Spider) -> dict[str, Any]:
    """Return what is noted with the requests of a spider: its class, and its arguments.

    Scrapy does not keep the arguments. So they are the plain attributes that its constructors name,
    or if it has none of its own, all plain ones. What begins with an underscore is left out, as
    Scrapyd's ``_job``, and what sounds like a password.
    """
    kind = type(spider)
    name = f"{kind.__module__}.{kind.__qualname__}"
    script = getattr(sys.modules["__main__"], "__file__", None)
    if kind.__module__ == "__main__" and script:
        name += f" in {Path(script).name}"
    named = _named_by(kind)
    arguments = {
        key: value[:_MOST] if isinstance(value, str) else value
        for key, value in vars(spider).items()
        if (named is None or key in named)
        and isinstance(value, _PLAIN)
        and not (key == "name" or key.startswith("_") or _SECRET.search(key))
    }
    return {"class": name, "arguments": arguments}


def _named_by(kind: type) -> set[str] | None:
    """Return the parameters that the constructors of a class name; None if it has none."""
    own = [
        vars(each)["__init__"]
        for each in kind.__mro__
        if "__init__" in vars(each) and each.__module__.partition(".")[0] not in _THEIRS
        if each is not object
    ]
    names: set[str] = set()
    for constructor in own:
        with suppress(TypeError, ValueError):  # it has no signature
            names.update(inspect.signature(constructor).parameters)
    return names if own else None


def warn_of_another(
    place: object, stored: dict[str, Any], own: dict[str, Any], *, setting: str, example: str
) -> None:
    """Warn if requests are those of another class, or of a spider with other arguments.

    :param stored: what was noted with them, see :func:`writer_of`; empty if nothing was.
    :param setting: keeps two spiders apart.
    :param example: its value for that; ``ARGUMENT`` stands for the name of one.
    """
    if not (stored and own):
        return
    if stored["class"] != own["class"]:
        logger.warning(
            "%s: written by %s, this is %s. Two spiders of one name mix their requests and items:"
            " rename one, or set another %s. If the class has only moved, all is well.",
            *(place, stored["class"], own["class"], setting),
        )
    theirs, ours = stored["arguments"], own["arguments"]
    names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    if names:
        logger.warning(
            "%s: written with %s, this run has %s. It fetches what both have yielded, so their"
            " items may be mixed. To keep them apart, set %s = %s.",
            *(place, _words(theirs, names), _words(ours, names)),
            *(setting, example.replace("ARGUMENT", names[0])),
        )


def _words(arguments: dict[str, Any], names: list[str]) -> str:
    return ", ".join(
        f"{name}={arguments[name]!r:.{_SHOWN}}" if name in arguments else f"no {name}"
        for name in names
    )
