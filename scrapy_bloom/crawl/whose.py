"""Whose a crawl is: the class of its spider, and the arguments that it was given, as one text."""

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

_THEIRS: Final = ("scrapy", "scrapy_redis", "builtins")
"""Packages whose spiders set each argument as an attribute."""

_LONGEST, _WORD, _DIGITS = 60, 20, 10  # characters of a value that is noted, and of its words
_SECRET: Final = re.compile(
    r"auth(?!or)|cookie|cred|key(?!w)|login|pass|(^|_)pin$|pwd?$|secret|session|sid$|token|user",
    re.IGNORECASE,
)
"""Names of what may be secret even if it looks harmless."""


def writer_of(spider: Spider) -> str:
    """Return what is noted with the requests of a spider: its class, and its arguments.

    Scrapy does not keep the arguments. So they are the plain attributes that its constructors name,
    or if it has none of its own, all plain ones. What begins with an underscore is left out, as
    Scrapyd's ``_job``. Of values that may be secret only the name is noted.
    """
    kind, names = type(spider), set[str]()
    own = [each for each in kind.__mro__ if each.__module__.partition(".")[0] not in _THEIRS]
    constructors = [vars(each)["__init__"] for each in own if "__init__" in vars(each)]
    for constructor in constructors:
        with suppress(TypeError, ValueError):  # it has no signature
            names.update(inspect.signature(constructor).parameters)
    script = getattr(sys.modules["__main__"], "__file__", None)
    inside = Path(script).name if kind.__module__ == "__main__" and script else kind.__module__
    arguments = (
        f"{name}={value!r}" if _is_harmless(name, str(value)) else f"{name}=\u2026"
        for name, value in sorted(vars(spider).items())
        if isinstance(value, (str, int, float, type(None)))
        and (name in names or not constructors)
        and not (name == "name" or name.startswith("_"))
    )
    return " ".join((f"{inside}.{kind.__qualname__}", *arguments))


def _is_harmless(name: str, text: str) -> bool:
    """Return whether a value consists of words, dates and short numbers, as no token does."""
    few = len(text) <= _LONGEST and sum(map(str.isdigit, text)) <= _DIGITS
    words = re.split(r"[ ,./:_+-]+", text)
    return few and not _SECRET.search(name) and all(map(_is_word, words))


def _is_word(text: str) -> bool:
    if text.isalpha():
        return len(text) <= _WORD and text in (text.lower(), text.upper(), text.capitalize())
    return not text or text.isdecimal()


def warn_of_another(place: object, stored: Any, own: str, *, setting: str) -> None:
    """Warn if requests are those of another class, or of a spider with other arguments.

    :param stored: what was noted with them, see :func:`writer_of`; empty if nothing was.
    :param setting: keeps two crawls apart.
    """
    if stored and own and stored != own:
        logger.warning(
            "%s: written by %.500r, this run is %.500r. It fetches what both have yielded, so their"
            " items may be mixed. To keep them apart, give each its own %s. If the class has only"
            " moved, all is well.",
            *(place, stored, own, setting),
        )
