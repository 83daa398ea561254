"""What ``meta={"bloom_max_age": ...}`` of a request asks for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy_bloom import stats
from scrapy_bloom.errors import SettingError, shown
from scrapy_bloom.options import MAX_AGE, WINDOW, read_age, write_span

if TYPE_CHECKING:
    from scrapy import Request

    from scrapy_bloom.session.reporter import Reporter

logger = logging.getLogger(__name__)


class Ages:
    """Reads the greatest ages that requests ask for.

    :param window: seconds that a page is seen; None for ever.
    :param reporter: counts those that cannot be read.
    """

    def __init__(self, window: float | None, reporter: Reporter) -> None:
        self._window = window
        self._reporter = reporter
        self._said_invalid = self._said_long = False

    def of(self, request: Request) -> float | None:
        """Return the seconds that a request asks for; None if it asks for nothing. Never raises.

        A value that cannot be read counts as 0: the page is fetched. So does that of a redirected
        request, which only goes on with one that was let through.
        """
        wish = request.meta.get(MAX_AGE)
        if wish is None:
            return None
        try:
            seconds = read_age(f"meta[{MAX_AGE!r}]", wish)
        except SettingError as error:
            self._say_invalid(request, error)
            return 0.0
        if "redirect_urls" in request.meta:
            return 0.0
        if self._window is not None and seconds > self._window:
            self._say_long(wish, self._window)
            return self._window
        return seconds

    def _say_invalid(self, request: Request, error: SettingError) -> None:
        self._reporter.add(stats.INVALID_MAX_AGE.key)
        if not self._said_invalid:
            self._said_invalid = True
            logger.warning(
                "%s Found in %s. Requests with such a value are not filtered, but remembered: where"
                " their pages link to each other, the crawl does not end by itself. More of them"
                " are counted in %s and not shown.",
                error,
                request,
                stats.INVALID_MAX_AGE.key,
            )

    def _say_long(self, wish: object, window: float) -> None:
        if not self._said_long:
            self._said_long = True
            logger.warning(
                "meta[%r] = %s is longer than %s, which is %s: no page is remembered for so long."
                " The window counts for such requests. This is logged once.",
                MAX_AGE,
                shown(wish),
                WINDOW.setting,
                write_span(window),
            )
