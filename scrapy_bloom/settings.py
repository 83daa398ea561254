"""The only reader of ``BLOOM_*``: each setting's name, default, range and meaning."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Generic, TypeVar

from scrapy_bloom.canonical.rules import (
    DEFAULT_LEVEL,
    Rule,
    Rules,
    read_level,
    read_names,
    read_rules,
)
from scrapy_bloom.errors import SettingError
from scrapy_bloom.job.directory import OnUnclean
from scrapy_bloom.values import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    read_capacity,
    read_error_rate,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One setting.

    Attributes:
        name: as users write it.
        default: the value when users write none, as they would write it.
        read: turns name and written value into the value; raises :class:`SettingError`.
        meaning: one sentence for the README.
    """

    name: str
    default: object
    read: Callable[[str, object], T]
    meaning: str

    def of(self, settings: Mapping[str, Any]) -> T:
        """Return the value that `settings` gives, or the default."""
        return self.read(self.name, settings.get(self.name, self.default))


def _read_on_unclean(name: str, value: object) -> OnUnclean:
    try:
        return OnUnclean(str(value).lower())
    except ValueError:
        known = ", ".join(repr(policy.value) for policy in OnUnclean)
        raise SettingError(f"{name} = {value!r}: give one of {known}.") from None


def _read_rules(name: str, value: object) -> dict[str, Rule]:
    if isinstance(value, str):  # from the command line
        with suppress(ValueError):
            value = json.loads(value)
    return read_rules(name, value)


CAPACITY: Final = Setting(
    "BLOOM_CAPACITY",
    DEFAULT_CAPACITY,
    read_capacity,
    'How many requests the filter is sized for: `10_000_000`, `1e7` or `"10M"`, from 1 to 10G.'
    " Beyond that it grows; a good guess saves memory and time.",
)
ERROR_RATE: Final = Setting(
    "BLOOM_ERROR_RATE",
    DEFAULT_ERROR_RATE,
    read_error_rate,
    "The share of new requests that may be called seen, and so lost, in total however far the"
    " filter grows: from 1e-15 to below 1.",
)
ON_UNCLEAN: Final = Setting(
    "BLOOM_ON_UNCLEAN",
    OnUnclean.ROLLBACK.value,
    _read_on_unclean,
    "What to do when the last run in the job directory was killed: `rollback` to its last clean"
    " stop, `reset` to an empty filter (also if `requests.queue` was deleted since), or `fail`: do"
    " not start.",
)

CANONICAL: Final = Setting(
    "BLOOM_CANONICAL",
    DEFAULT_LEVEL,
    read_level,
    "Which spellings of a URL are one page: `scrapy` those that are for Scrapy, `safe` also those"
    " that the URL standards call the same, `usual` also a dot after the host and tracking"
    " parameters.",
)
DROP_PARAMS: Final = Setting(
    "BLOOM_CANONICAL_DROP_PARAMS",
    (),
    read_names,
    "Parameters that make no difference, at any level: names, or beginnings of names followed by"
    ' `*`: `["sid", "track_*"]`.',
)
KEEP_PARAMS: Final = Setting(
    "BLOOM_CANONICAL_KEEP_PARAMS",
    (),
    read_names,
    "Parameters that always make a difference, though they are on the tracking list or another.",
)
RULES: Final = Setting(
    "BLOOM_CANONICAL_RULES",
    {},
    _read_rules,
    "More rules, for a domain and its subdomains or, under `*`, for all: a dict from domain to a"
    " dict with any of `level`, `steps`, `drop`, `keep`, `keep_only`.",
)

ALL: Final[tuple[Setting[Any], ...]] = (
    CAPACITY,
    ERROR_RATE,
    ON_UNCLEAN,
    CANONICAL,
    DROP_PARAMS,
    KEEP_PARAMS,
    RULES,
)


@dataclass(frozen=True)
class Settings:
    """What the user chose, read and checked.

    Attributes:
        capacity: items in the first slice.
        error_rate: bound for the total error rate.
        on_unclean: what to do after a kill.
        canonical: which URLs are one page.
    """

    capacity: int
    error_rate: float
    on_unclean: OnUnclean
    canonical: Rules

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Settings:
        """Read and check all settings; a name that is none of ours is said in the log.

        :raises SettingError: naming the setting, its value and what it may be.
        """
        _warn_of_unknown(settings)
        return cls(
            capacity=CAPACITY.of(settings),
            error_rate=ERROR_RATE.of(settings),
            on_unclean=ON_UNCLEAN.of(settings),
            canonical=Rules.of(
                CANONICAL.of(settings),
                DROP_PARAMS.of(settings),
                KEEP_PARAMS.of(settings),
                RULES.of(settings),
            ),
        )


def _warn_of_unknown(settings: Mapping[str, Any]) -> None:
    known = [setting.name for setting in ALL]
    for name in settings:
        if name.startswith("BLOOM_") and name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            logger.warning("There is no setting %s%s", name, hint or ".")
