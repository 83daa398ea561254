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


class LateFilter:
    """Remembers by itself what it is asked, until the filter in Redis can be opened.

    Then it reports what it has granted, and everything goes to that filter.

    :param join: opens the filter; called in a thread of its own, again and again while it raises a
        :class:`BackendError` that may pass. What else it raises, the next add raises.
    :param error: why the filter could not be opened.
    """

    def __init__(self, join: Callable[[], RedisFilter], error: BackendError) -> None:
        self._join = join
        self._error: BloomError = error
        self._granted: dict[bytes, None] = {}
        self._counters = Counters(outages=1)
        self._let_through: dict[bytes, float] = {}  # for their age, and when that was
        self._joined: RedisFilter | None = None  # by the crawl; from then on it has the filter
        self._opened: RedisFilter | None = None  # by the thread
        self._refused = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._try, name="scrapy-bloom joins", daemon=True)
        logger.error(
            "%s Until it can be used this worker goes on by its own memory: pages that it does not"
            " know are fetched, perhaps twice, and reported to Redis later.",
            error,
        )
        self._thread.start()

    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before.

        :raises BloomError: if the filter cannot be opened, and that will not pass.
        """
        if self._joined is not None:
            return self._joined.add(fingerprint)
        return self.add_many([fingerprint])[0]

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; return for each, in order, whether it was there before.

        :raises BloomError: as :meth:`add`.
        """
        shared = self._shared()
        if shared is not None:
            return shared.add_many(fingerprints)
        if self._refused:
            raise self._error
        verdicts = []
        for fingerprint in fingerprints:
            seen = fingerprint in self._granted
            verdicts.append(seen)
            self._granted[fingerprint] = None
            self._counters.unknown += not seen
            self._counters.local += seen
        return verdicts

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether a page was let through less than `max_age` seconds ago; if not, do so."""
        if self._joined is not None:
            return self._joined.add_aged(fingerprint, max_age)
        now = time.monotonic()
        last = self._let_through.get(fingerprint)
        if last is not None and now - last < max_age:
            return True
        self.add(fingerprint)
        self._let_through[fingerprint] = now
        return False

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether the fingerprint was added."""
        return self.contains_many([fingerprint])[0]

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added, as far as one can know."""
        shared = self._shared()
        if shared is not None:
            return shared.contains_many(fingerprints)
        return [fingerprint in self._granted for fingerprint in fingerprints]

    def forget(self, fingerprint: bytes) -> bool:
        """Make one fingerprint new once more; return whether it was there.

        :raises BackendError: until the filter is open, and as it does.
        """
        return self._open().forget(fingerprint)

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make fingerprints new once more; return for each, in order, whether it was there.

        :raises BackendError: as :meth:`forget`.
        """
        return self._open().forget_many(fingerprints)

    def finish(self, fingerprint: bytes, *, added: bool = True) -> None:
        """Learn that this worker has the response of a page."""
        if self._joined is not None:
            self._joined.finish(fingerprint, added=added)

    def info(self) -> FilterInfo:
        """Return the state of the filter in Redis.

        :raises BackendError: until it is open, and as the filter does.
        """
        return self._open().info()

    def numbers(self) -> dict[str, float]:
        """Return what went over the wire, by the names in :class:`Counters`."""
        counts: dict[str, float] = asdict(self._counters)
        if self._joined is not None:
            counts = {name: counts[name] + n for name, n in self._joined.numbers().items()}
        return counts

    def clear(self) -> bool:
        """Forget everything, as the filter does.

        :raises BackendError: until it is open, and as the filter does.
        """
        return self._open().clear()

    def delete(self) -> bool:
        """Delete the filter, as it does itself.

        :raises BackendError: until it is open, and as the filter does.
        """
        return self._open().delete()

    def close(self) -> None:
        """Report what Redis does not know yet and leave. A second call does nothing."""
        self._stop.set()
        self._thread.join()
        shared = self._shared()
        if shared is not None:
            shared.close()
        elif self._granted:
            logger.warning(
                "%s fingerprints could not be reported to Redis: other workers may fetch their"
                " pages again.",
                f"{len(self._granted):,}",
            )
            self._granted.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _shared(self) -> RedisFilter | None:
        """Return the filter if it is open, after handing over to it."""
        if self._joined is None and self._opened is not None:
            self._joined = self._opened
            self._joined.grant(self._granted)
            self._granted = {}
        return self._joined

    def _open(self) -> RedisFilter:
        shared = self._shared()
        if shared is None:
            raise self._error
        return shared

    def _try(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stop.wait(pause):
            pause = min(2 * pause, _MAX_PAUSE)
            try:
                self._opened = self._join()
            except BackendError as error:
                self._error = error
                if error.temporary:
                    continue
                self._refused = True
            except BloomError as error:
                self._error = error
                self._refused = True
            else:
                logger.info("The filter in Redis is open now.")
            return
