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
