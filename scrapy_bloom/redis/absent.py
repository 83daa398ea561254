"""A filter whose server could not be used at the start, under the policy ``allow``."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from scrapy_bloom.errors import BackendError, BloomError
from scrapy_bloom.redis.counters import Counters

if TYPE_CHECKING:
    from typing_extensions import Self

    from scrapy_bloom.core.info import FilterInfo
    from scrapy_bloom.redis.filter import RedisFilter

logger = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.25  # seconds between two tries
_MAX_PAUSE: Final = 5.0  # seconds


class AbsentFilter:
    """Calls every page new once until the filter in Redis can be opened, and then uses that.

    What it calls new before is not marked.

    :param join: opens the filter; called in a thread of its own, again and again while it raises a
        :class:`BackendError` that may pass. What else it raises, the next add raises.
    :param error: why the filter could not be opened.
    """

    def __init__(self, join: Callable[[], RedisFilter], error: BackendError) -> None:
        self._join = join
        self._error: BloomError = BackendError(
            f"{error} Until it can be used, pages are fetched and not marked: they may be fetched"
            f" again."
        )
        self._refused = False
        self._opened: RedisFilter | None = None
        self._let_through: dict[bytes, float] = {}  # and when
        self._counters = Counters(outages=1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._try, name="scrapy-bloom joins", daemon=True)
        self._thread.start()

    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before.

        :raises BloomError: if the filter cannot be opened, and that will not pass.
        """
        return self.add_many([fingerprint])[0]

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; return for each, in order, whether it was there before.

        :raises BloomError: as :meth:`add`.
        """
        if self._opened is not None:
            return self._opened.add_many(fingerprints)
        return [self._is_known(fingerprint) for fingerprint in fingerprints]

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether a page was let through less than `max_age` seconds ago; if not, do so.

        :raises BloomError: as :meth:`add`.
        """
        if self._opened is not None:
            return self._opened.add_aged(fingerprint, max_age)
        return self._is_known(fingerprint, max_age)

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether the fingerprint was added."""
        return self.contains_many([fingerprint])[0]

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added; False until one can know."""
        if self._opened is not None:
            return self._opened.contains_many(fingerprints)
        return [False for _ in fingerprints]

    def forget(self, fingerprint: bytes) -> bool:
        """Make one fingerprint new once more; return whether it was there.

        :raises BackendError: until the filter is open, and as it does.
        """
        return self._filter().forget(fingerprint)

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make fingerprints new once more; return for each, in order, whether it was there.

        :raises BackendError: as :meth:`forget`.
        """
        return self._filter().forget_many(fingerprints)

    def info(self) -> FilterInfo:
        """Return the state of the filter in Redis.

        :raises BackendError: until it is open, and as the filter does.
        """
        return self._filter().info()

    def numbers(self) -> dict[str, float]:
        """Return what went over the wire, by the names in :class:`Counters`."""
        counts: dict[str, float] = asdict(self._counters)
        later = self._opened.numbers() if self._opened else {}
        return {name: count + later.get(name, 0) for name, count in counts.items()}

    def clear(self) -> bool:
        """Forget everything, as the filter does.

        :raises BackendError: until it is open, and as the filter does.
        """
        return self._filter().clear()

    def delete(self) -> bool:
        """Delete the filter, as it does itself.

        :raises BackendError: until it is open, and as the filter does.
        """
        return self._filter().delete()

    @property
    def is_open(self) -> bool:
        """Whether the filter in Redis is in use by now."""
        return self._opened is not None

    def close(self) -> None:
        """Leave the filter. A second call does nothing."""
        self._stop.set()
        self._thread.join()
        if self._opened is not None:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_known(self, fingerprint: bytes, max_age: float | None = None) -> bool:
        """Return whether this worker has let a page through, at most so long ago; if not, do so."""
        if self._refused:
            raise self._error
        now, last = time.monotonic(), self._let_through.get(fingerprint)
        if last is not None and (max_age is None or now - last < max_age):
            self._counters.local += 1
            return True
        self._counters.unknown += 1
        self._let_through[fingerprint] = now
        return False

    def _filter(self) -> RedisFilter:
        if self._opened is None:
            raise self._error
        return self._opened

    def _try(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stop.wait(pause):
            pause = min(2 * pause, _MAX_PAUSE)
            try:
                opened = self._join()
            except BloomError as error:
                self._error = error
                self._refused = not (isinstance(error, BackendError) and error.temporary)
                if self._refused:
                    return
            else:
                logger.info("The filter in Redis is open now.")
                self._opened = opened
                self._let_through.clear()
                return
