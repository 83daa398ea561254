"""What tests can see and do only behind the public names, each with its reason.

A test reads private fields nowhere else: tests/test_house.py looks.
"""

from scrapy_bloom.canonical import fingerprint


def repeat_the_self_check():
    """Let the next fingerprinter compare itself with the installed Scrapy again.

    It does so once in a process, and another Scrapy cannot be installed in the middle of one.
    """
    fingerprint._trusted.cache_clear()


def scheduler_of(crawler):
    """Return the scheduler of a crawl; Scrapy shows it to nobody, but a fork gets a copy of it."""
    return crawler.engine._slot.scheduler
