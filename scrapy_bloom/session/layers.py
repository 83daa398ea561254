"""Which filters a crawl puts around that of its backend."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from scrapy_bloom.errors import SettingError
from scrapy_bloom.layers.exact import ExactFilter
from scrapy_bloom.options import EXACT

if TYPE_CHECKING:
    from scrapy_bloom.backends.base import Opened
    from scrapy_bloom.core.local import LocalFilter
    from scrapy_bloom.settings import Settings


def check_layers(settings: Settings, backend: str, *, journaled: bool) -> None:
    """Look whether a crawl can have the layers that its settings want.

    :param backend: name of its backend.
    :param journaled: whether its marks are kept with its requests.
    :raises SettingError: if it cannot have one of them.
    """
    if settings[EXACT] and backend == "local" and not journaled:
        raise SettingError(
            f"{EXACT.setting} = True: it needs SCHEDULER = 'scrapy_bloom.Scheduler' with a"
            f" JOBDIR, or a filter in Redis with BLOOM_REDIS_LAYOUT = 'sets'. Without any of"
            f" these use Scrapy's own filter, which is exact: DUPEFILTER_CLASS ="
            f" 'scrapy.dupefilters.RFPDupeFilter'."
        )


def made_exact(opened: Opened, inner: LocalFilter) -> Opened:
    """Return a filter whose false positives are caught; what keeps it has to give it its lists."""
    exact = ExactFilter(inner)

    def numbers() -> dict[str, float]:
        return {**opened.numbers(), "false_positives": exact.false_positives}

    def close() -> None:
        exact.close()
        opened.close()

    return replace(opened, filter=exact, numbers=numbers, close=close)
