"""One line in the settings, and whose word counts when somebody else has one."""

from typing import ClassVar

import pytest
from scrapy.settings import SETTINGS_PRIORITIES, Settings
from scrapy.utils.test import get_crawler
from support.crawling import ADDONS, Follower

from scrapy_bloom import Addon, BloomDupeFilter

pytestmark = pytest.mark.scrapy

THEIRS = "scrapy.dupefilters.RFPDupeFilter"
OURS = "scrapy_bloom.BloomDupeFilter"


def test_the_one_line_makes_it_the_filter_of_a_crawl():
    crawler = get_crawler(settings_dict={"ADDONS": ADDONS})
    assert crawler.settings["DUPEFILTER_CLASS"] == OURS
    assert crawler.settings.getpriority("DUPEFILTER_CLASS") == SETTINGS_PRIORITIES["addon"]


def test_the_class_itself_will_do_in_place_of_its_path():
    crawler = get_crawler(settings_dict={"ADDONS": {Addon: 500}})
    assert crawler.settings["DUPEFILTER_CLASS"] == OURS


@pytest.mark.parametrize("priority", ["command", "addon", "project", "spider", "cmdline"])
@pytest.mark.parametrize("choice", [THEIRS, "", BloomDupeFilter])
def test_a_choice_that_somebody_has_made_stays(priority, choice):
    settings = Settings()
    settings.set("DUPEFILTER_CLASS", choice, priority=priority)
    Addon().update_settings(settings)
    assert settings["DUPEFILTER_CLASS"] == choice
    assert settings.getpriority("DUPEFILTER_CLASS") == SETTINGS_PRIORITIES[priority]


class Further(BloomDupeFilter):
    """A filter of a project's own on top of ours."""


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("priority", ["addon", "project", "spider"])
@pytest.mark.parametrize("theirs", [THEIRS, "nowhere.Filter"])
def test_a_filter_that_stands_in_its_way_is_named(priority, theirs, caplog):
    settings = Settings()
    settings.set("DUPEFILTER_CLASS", theirs, priority=priority)
    Addon().update_settings(settings)
    (warning,) = warnings(caplog)
    assert warning == (
        f"The add-on scrapy_bloom.Addon does nothing, because DUPEFILTER_CLASS is {theirs!r}."
        " Remove that setting to filter with scrapy_bloom.BloomDupeFilter, or remove the add-on."
    )


@pytest.mark.parametrize(
    ("choice", "priority"),
    [
        (OURS, "project"),
        ("scrapy_bloom.dupefilter.BloomDupeFilter", "project"),
        (Further, "spider"),
        (THEIRS, "cmdline"),
        ("scrapy.dupefilters.BaseDupeFilter", "command"),
    ],
)
def test_a_choice_that_is_ours_or_plainly_meant_is_not_spoken_of(choice, priority, caplog):
    settings = Settings()
    settings.set("DUPEFILTER_CLASS", choice, priority=priority)
    Addon().update_settings(settings)
    assert warnings(caplog) == []


def test_a_spider_can_do_without_the_add_on(caplog):
    class Without(Follower):
        custom_settings: ClassVar = {"ADDONS": {"scrapy_bloom.Addon": None}}

    crawler = get_crawler(Without, {"ADDONS": ADDONS})
    assert crawler.settings["DUPEFILTER_CLASS"] == THEIRS
    assert warnings(caplog) == []


def test_it_is_listed_by_its_name(caplog):
    caplog.set_level("INFO")
    get_crawler(settings_dict={"ADDONS": ADDONS})
    (listed,) = (r.getMessage() for r in caplog.records if "Enabled addons" in r.getMessage())
    assert "[scrapy_bloom.Addon()]" in listed


def test_a_spiders_own_choice_stays_in_a_crawl():
    class Choosy(Follower):
        custom_settings: ClassVar = {"DUPEFILTER_CLASS": THEIRS}

    crawler = get_crawler(Choosy, {"ADDONS": ADDONS})
    assert crawler.settings["DUPEFILTER_CLASS"] == THEIRS


def test_a_later_word_of_project_or_command_line_wins_over_the_add_on():
    settings = Settings({"ADDONS": ADDONS})
    Addon().update_settings(settings)
    for priority in ("project", "spider", "cmdline"):
        settings.set("DUPEFILTER_CLASS", THEIRS, priority=priority)
        assert settings["DUPEFILTER_CLASS"] == THEIRS


def test_it_sets_nothing_else():
    before = Settings()
    after = before.copy()
    Addon().update_settings(after)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"DUPEFILTER_CLASS"}
