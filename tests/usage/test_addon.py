"""One line in the settings, and whose word counts when somebody else has one."""

import pytest
from scrapy.core.downloader.middleware import DownloaderMiddlewareManager
from scrapy.settings import SETTINGS_PRIORITIES, Settings
from scrapy.utils.test import get_crawler
from support.crawling import ADDONS, KEPT, OURS, RFP, SCRAPYS
from testbed.localsite import LocalSite

from scrapy_bloom import Addon, BloomDupeFilter, RetryAfterMiddleware

pytestmark = pytest.mark.each_scrapy

RETRY_AFTER = "scrapy_bloom.RetryAfterMiddleware"


class Further(BloomDupeFilter):
    """A filter of a project's own on top of ours."""


def updated(**written):
    """Return settings after the add-on, from names and either values or values with priorities."""
    settings = Settings()
    for name, value in written.items():
        settings.set(name, *(value if isinstance(value, tuple) else (value, "project")))
    Addon().update_settings(settings)
    return settings


def test_the_one_line_gives_a_crawl_our_filter_our_scheduler_and_our_middleware(tmp_path, caplog):
    caplog.set_level("INFO")
    line = {"ADDONS": {Addon: 500}, "TELNETCONSOLE_ENABLED": False}
    crawler = get_crawler(settings_dict={**line, "JOBDIR": str(tmp_path)})
    settings, by_add_ons = crawler.settings, SETTINGS_PRIORITIES["addon"]
    changed = {
        name: settings[name] for name in settings if settings.getpriority(name) == by_add_ons
    }
    assert changed == {"DUPEFILTER_CLASS": OURS, **KEPT}
    DownloaderMiddlewareManager.from_crawler(crawler)
    (listed,) = (text for text in caplog.messages if text.startswith("Enabled downloader"))
    assert f"'{RETRY_AFTER}'," in listed


@pytest.mark.parametrize("priority", ["addon", "cmdline"])
def test_the_addon_keeps_a_scheduler_or_filter_that_was_chosen(priority, tmp_path):
    chosen = {"DUPEFILTER_CLASS": (Further, priority), "SCHEDULER": (SCRAPYS, priority)}
    settings = updated(**chosen, JOBDIR=str(tmp_path))
    assert settings["DUPEFILTER_CLASS"] is Further
    assert settings["SCHEDULER"] == SCRAPYS


@pytest.mark.parametrize(
    ("theirs", "priority"), [(RFP, "cmdline"), ("nowhere.Filter", "addon"), ("", "project")]
)
def test_a_filter_that_stands_in_its_way_is_named_in_one_line(priority, theirs, caplog):
    settings = Settings({"ADDONS": ADDONS})
    settings.set("DUPEFILTER_CLASS", theirs, priority)
    get_crawler(settings_dict={}).addons.load_settings(settings)
    assert settings["DUPEFILTER_CLASS"] == theirs
    assert settings["SCHEDULER"] == SCRAPYS
    (warning,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert warning == (
        f"Disabled scrapy_bloom.Addon: DUPEFILTER_CLASS is {theirs!r}, so this crawl runs without"
        " scrapy-bloom. Remove that setting."
    )


@pytest.mark.parametrize(
    "theirs", [RETRY_AFTER, RetryAfterMiddleware, "scrapy_bloom.retry_after.RetryAfterMiddleware"]
)
def test_the_middleware_is_there_once(theirs):
    name = "DOWNLOADER_MIDDLEWARES"
    assert dict(updated(**{name: {"a.B": None}})[name]) == {"a.B": None, RETRY_AFTER: 560}
    for value in (5, None):
        assert dict(updated(**{name: {theirs: value}})[name]) == {theirs: value}


@pytest.mark.parametrize(
    ("name", "value", "scheduler"),
    [
        ("BLOOM_REDIS_URL", "redis://localhost/0", *KEPT.values()),
        ("BLOOM_BACKEND", "Redis", *KEPT.values()),
        ("JOBDIR", "", SCRAPYS),
    ],
)
def test_the_addon_sets_our_scheduler_where_requests_can_be_kept(name, value, scheduler):
    assert updated(**{name: value})["SCHEDULER"] == scheduler


WITHOUT_REDIS = """
import sys

for name in [name for name in sys.modules if name.startswith("scrapy_bloom.redis")]:
    del sys.modules[name]  # this process is a fork of one that has imported them
sys.modules["redis"] = None  # as if it were not installed
ADDONS = {"scrapy_bloom.Addon": 500}
SPIDER_MODULES = ["support.crawling"]
TELNETCONSOLE_ENABLED = False
"""


@pytest.mark.server
@pytest.mark.parametrize("chosen", [{"BLOOM_REDIS_URL": "redis://x"}, {"BLOOM_BACKEND": "redis"}])
def test_without_the_client_library_a_crawl_that_workers_share_is_refused(project, chosen):
    (project.folder / "project_settings.py").write_text(WITHOUT_REDIS)
    with LocalSite(pages=3) as site:
        for scheduler in ({}, {"SCHEDULER": SCRAPYS}):
            run = project.crawl(site, keep=False, **chosen, **scheduler)
            assert run.end() == 1, run.log
            assert run.reason == "bloom_invalid_setting"
            assert "Traceback" not in run.log
            [error] = run.logged("ERROR")
            assert error.startswith("A filter in Redis needs the packages redis and msgpack: pip")
            assert run.logged("WARNING") == []
        assert site.delivered == 0
        local = project.finish(site, BLOOM_BACKEND="local", BLOOM_REDIS_URL="redis://x")
    assert local.logged("WARNING") == []
    run = project.start("list", "-s", "=".join(*chosen.items()))
    assert (run.end(), run.output.split(), run.log) == (0, ["follower"], "")
