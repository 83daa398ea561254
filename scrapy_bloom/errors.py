"""The errors of scrapy-bloom.

Each has a ``reason``: the ``finish_reason`` of a crawl that the error refuses or ends.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final


class BloomError(Exception):
    """Base class of the errors of scrapy-bloom."""

    reason: ClassVar[str] = "bloom_error"


class SettingError(BloomError, ValueError):
    """A setting or an argument has an invalid value."""

    reason: ClassVar[str] = "bloom_invalid_setting"


class MissingLibraryError(SettingError, ModuleNotFoundError):
    """The settings, or an import, need a package that is not installed.

    The message ends with the line that installs it, as README has it.

    :param needs: what needs which package.
    :param extra: the extra of scrapy-bloom that brings it.
    """

    def __init__(self, needs: str, extra: str) -> None:
        source = "git+https://github.com/scrapy-bloom/scrapy-bloom"
        super().__init__(f"{needs}: pip install 'scrapy-bloom[{extra}] @ {source}'")


class StateError(BloomError):
    """Stored state is damaged, of another format, or not ours. It was not modified."""

    reason: ClassVar[str] = "bloom_bad_state"


class JobInUseError(BloomError):
    """Another crawl is using the job directory."""

    reason: ClassVar[str] = "bloom_job_in_use"


class BackendError(BloomError):
    """Redis is unavailable; the message says what to do.

    Attributes:
        temporary: whether the problem may go away by itself.
        answered: whether the server has answered, if only with an error.
    """

    reason: ClassVar[str] = "bloom_backend"

    def __init__(self, text: str, *, temporary: bool = False, answered: bool = False) -> None:
        super().__init__(text)
        self.temporary = temporary
        self.answered = answered


class FilterLostError(BloomError):
    """The filter in Redis was deleted while it was in use."""

    reason: ClassVar[str] = "bloom_filter_lost"


STRANGE: Final = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    struct.error,
)
"""What reading strange values may raise."""

_LONGEST_SHOWN: Final = 500


def shown(value: object) -> str:
    """Return a refused value for an error message: its repr, cut if it is very long.

    Some values have no repr: nested too deeply, or integers of thousands of digits.
    """
    try:
        text = repr(value)
    except Exception:  # whatever it is, the message is about the value
        text = f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
