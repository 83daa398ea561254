"""The errors that scrapy-bloom raises on purpose, in the user's words.

Every error has a ``reason``. If the error refuses a crawl, Scrapy shows this short name as the
reason for which the spider was closed.
"""

from __future__ import annotations

from typing import ClassVar, Final


class BloomError(Exception):
    """Base of all errors that scrapy-bloom raises on purpose."""

    reason: ClassVar[str] = "bloom_error"


class SettingError(BloomError, ValueError):
    """A setting or an argument has a value that cannot be used."""

    reason: ClassVar[str] = "bloom_setting"


class StateError(BloomError):
    """Stored state is not ours, damaged, newer, or made for another crawl. It is left untouched."""

    reason: ClassVar[str] = "bloom_state"


class JobInUseError(BloomError):
    """Another crawl holds the job directory."""

    reason: ClassVar[str] = "bloom_job_in_use"


class BackendError(BloomError):
    """The filter's server is unusable; the message says what to do.

    Attributes:
        temporary: whether the server only failed to answer, which may pass by itself.
        refused: whether the server does not let this user in, or do what is needed.
    """

    reason: ClassVar[str] = "bloom_backend"

    def __init__(self, text: str, *, temporary: bool = False, refused: bool = False) -> None:
        super().__init__(text)
        self.temporary = temporary
        self.refused = refused


class FilterLostError(BloomError):
    """A filter that was in use has vanished from its server, in whole or in part."""

    reason: ClassVar[str] = "bloom_filter_lost"


_LONGEST_SHOWN: Final = 500


def shown(value: object) -> str:
    """Return a refused value as an error message shows it: its repr, cut if it is very long.

    A value may have no repr at all: nested too deeply, or an integer of thousands of digits.
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - whatever it is, the message is about the value
        text = f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
