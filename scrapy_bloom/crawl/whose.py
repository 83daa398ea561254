"""Whose a crawl is: the class of its spider, and the arguments that it was given."""

from __future__ import annotations

import inspect
import logging
import sys
from contextlib import suppress
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scrapy import Spider

logger = logging.getLogger(__name__)

_THEIRS: Final = ("scrapy", "scrapy_redis", "builtins")
"""Packages whose spiders set each argument as an attribute."""

_DIGITS: Final = 4  # of a value's digest: enough to see another one, too few to find a password


def writer_of(spider: Spider) -> str:
    """Return what is recorded with a spider's requests: ``shop.Books category=6f3a pages=77de``.

    That is its class, and a short digest of each argument. Scrapy does not keep the arguments. So
    they are the plain attributes that its constructors name, or if it has none of its own, all
    plain ones. What begins with an underscore is left out, as Scrapyd's ``_job``.
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
        f"{name}={_digest(value)}"
        for name, value in sorted(vars(spider).items())
        if isinstance(value, (str, int, float, type(None)))
        and (name in names or not constructors)
        and not (name == "name" or name.startswith("_"))
    )
    return " ".join((f"{inside}.{kind.__qualname__}", *arguments))


def _digest(value: object) -> str:
    text = repr(value).encode(errors="replace")
    return sha1(text, usedforsecurity=False).hexdigest()[:_DIGITS]


def warn_of_another(place: object, stored: Any, own: str, *, setting: str) -> None:
    """Warn if requests are those of another class, or of a spider with other arguments.

    :param stored: what was recorded with them, see :func:`writer_of`; empty if nothing was.
    :param setting: keeps two crawls apart.
    """
    if stored and own and stored != own:
        (theirs, *before), (ours, *now) = stored.split(" "), own.split(" ")
        changed = sorted({each.rpartition("=")[0] for each in {*before} ^ {*now}})
        how = [f"by {theirs!r:.500} (this run is {ours!r:.500})"] if theirs != ours else []
        how += [f"with another {', '.join(map(repr, changed)):.500}"] if changed else []
        logger.warning(
            "%s: made %s. This run fetches what both have yielded, so their items may be mixed. To"
            " keep them apart, give each its own %s. Ignore this if the class has only moved.",
            *(place, " ".join(how), setting),
        )
