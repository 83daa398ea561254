"""Which filters a crawl puts around that of its backend."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from scrapy_bloom.errors import SettingError
from scrapy_bloom.layers.audit import COUNTS, SAMPLE, AuditFilter, report_of
from scrapy_bloom.layers.exact import ExactFilter
from scrapy_bloom.options import AUDIT, EXACT, WINDOW

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from scrapy_bloom.backends.base import Opened
    from scrapy_bloom.core.local import LocalFilter
    from scrapy_bloom.settings import Settings
    from scrapy_bloom.storage.store import JobStore

logger = logging.getLogger(__name__)


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
    if settings[EXACT] and settings[AUDIT] is not None:
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
    """Return a filter that is held against a sample.

    What keeps a journaled one has to give it what was noted.
    """
    audit, kept = AuditFilter(inner, share), opened.kept
    if kept is not None:
        try:
            resume_audit(audit, kept.noted, kept.folder)
        except (KeyError, TypeError, ValueError):  # of another version, which noted other things
            audit = AuditFilter(inner, share)
            audit.begin()
        kept.notes = audit.notes
    return replace(
        opened,
        filter=audit,
        numbers=lambda: {**opened.numbers(), **asdict(audit.report())},
        audited=audit.report,
    )


def end_audit(kept: JobStore) -> None:
    """Log that the audit of earlier runs is dropped, if there was one."""
    with suppress(KeyError, TypeError, ValueError):  # of another version, as above
        resume_audit(None, kept.noted, kept.folder)


def resume_audit(audit: AuditFilter | None, noted: Mapping[str, object], place: Path) -> None:
    """Go on with the audit of earlier runs, or begin one; log what is dropped.

    :param audit: the filter; None if it has no audit any more.
    :param noted: what they have noted.
    :param place: what has the notes.
    :raises ValueError: if these make no sense; or a KeyError or TypeError.
    """
    counts, sample = str(noted.get(COUNTS) or ""), noted.get(SAMPLE)
    before = report_of(counts)
    if audit is None:
        dropped = f"{AUDIT.setting} was taken out"
    elif not counts:
        audit.begin()
        return
    elif audit.resume(counts, sample if isinstance(sample, bytes) else b""):
        return
    else:
        dropped = f"{AUDIT.setting} or {WINDOW.setting} is another one now"
    if before and before.checked:
        logger.info(
            "%s: %s, so what the audit of earlier runs has counted is dropped: %s of %s new"
            " pages in the sample were called seen.",
            place,
            dropped,
            f"{before.observed:,}",
            f"{before.checked:,}",
        )
