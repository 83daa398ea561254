"""Which filters a crawl puts around that of its backend."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from scrapy_bloom.errors import SettingError
from scrapy_bloom.layers.audit import AuditFilter
from scrapy_bloom.layers.exact import ExactFilter
from scrapy_bloom.options import AUDIT, EXACT

if TYPE_CHECKING:
    from scrapy_bloom.backends.base import Opened
    from scrapy_bloom.core.local import LocalFilter
    from scrapy_bloom.settings import Settings


def check_layers(settings: Settings, backend: str, *, journaled: bool, kept: bool) -> None:
    """Look whether a crawl can have the layers that its settings want.

    :param backend: name of its backend.
    :param journaled: whether its marks are kept with its requests.
    :param kept: whether it has a job directory.
    :raises SettingError: if it cannot have one of them.
    """
    if settings[EXACT] and backend == "local" and not journaled:
        raise SettingError(
            f"{EXACT.setting} = True: it needs SCHEDULER = 'scrapy_bloom.Scheduler' with a"
            f" JOBDIR, or a filter in Redis with BLOOM_REDIS_LAYOUT = 'sets'. Without any of"
            f" these use Scrapy's own filter, which is exact: DUPEFILTER_CLASS ="
            f" 'scrapy.dupefilters.RFPDupeFilter'."
        )
    if settings[AUDIT] is None:
        return
    if backend == "local" and kept and not journaled:
        raise SettingError(
            f"{AUDIT.setting} is set: it needs SCHEDULER = 'scrapy_bloom.Scheduler' where there is"
            f" a JOBDIR. Remove it, or set that scheduler."
        )
    if settings[EXACT]:
        raise SettingError(
            f"{AUDIT.setting} is set, and {EXACT.setting}, too: with that no new page is called"
            f" seen, so that there is nothing to be found in a sample. Remove {AUDIT.setting}."
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


def made_audited(opened: Opened, inner: LocalFilter, share: float) -> Opened:
    """Return a filter that is held against a sample."""
    audit = AuditFilter(inner, share)
    return replace(
        opened,
        filter=audit,
        numbers=lambda: {**opened.numbers(), **asdict(audit.report())},
        audited=audit.report,
    )
