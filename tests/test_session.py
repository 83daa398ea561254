"""One crawl's filter: verdicts, marks handed on, and stats told."""

import logging

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler
from support.jobs import everything_in

from scrapy_bloom.backends.base import Opened
from scrapy_bloom.backends.local import LocalBackend
from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.session.reporter import Reporter
from scrapy_bloom.session.session import Session
from scrapy_bloom.session.verdict import Verdict
from scrapy_bloom.stats import FROM_INFO
from scrapy_bloom.storage.snapshot import read_snapshot

pytestmark = pytest.mark.scrapy

NEW, SEEN, EXEMPT, ERROR = Verdict


def open_session(settings=None, **arguments):
    crawler = get_crawler(settings_dict=settings)
    return Session.open(crawler, Reporter(crawler), **arguments), crawler.stats


def page(name):
    return Request(f"https://example.com/{name}")


def redirected(name):
    """Return a request for a page that has redirected to itself."""
    url = page(name).url
    return Request(url, meta={"redirect_urls": [url]})


def check_all(session, requests):
    return [session.check(request) for request in requests]


class FailsForOdd:
    """Cannot name the page `odd`."""

    def fingerprint(self, request):
        if request.url.endswith("/odd"):
            raise ValueError("an odd page")
        return request.url.encode()


ODD = {"REQUEST_FINGERPRINTER_CLASS": FailsForOdd}


def test_each_request_gets_its_verdict():
    requests = [page("a"), page("odd"), page("b"), page("a"), redirected("a"), redirected("a")]
    session, _ = open_session(ODD)
    assert check_all(session, requests) == [NEW, ERROR, NEW, SEEN, EXEMPT, SEEN]
    session.close()


def test_each_new_mark_is_handed_on_within_its_check():
    marks = []
    session, _ = open_session(ODD, on_mark=marks.append)
    requests = [page("a"), page("odd"), page("b"), page("a"), redirected("a"), redirected("a")]
    check_all(session, requests)
    first, second, step = marks
    assert (first, second) == (page("a").url.encode(), page("b").url.encode())
    assert step not in (first, second)
    session.close()


def test_replayed_marks_are_seen_and_neither_counted_nor_handed_on():
    before = []
    first, _ = open_session(on_mark=before.append)
    for request in (page("a"), redirected("a")):
        first.check(request)
    first.close()
    again = []
    second, stats = open_session(on_mark=again.append)
    second.opened.filter.restore(before)
    assert [second.check(r) for r in (page("a"), redirected("a"), page("b"))] == [SEEN, SEEN, NEW]
    assert len(again) == 1
    second.close()
    assert stats.get_value("bloom/checked") == 3
    assert stats.get_value("bloom/items") == 3


class Away(LocalFilter):
    """A filter that cannot be asked."""

    def add(self, _):
        raise ConnectionError("nobody is there")


def test_what_the_filter_cannot_take_is_crawled_and_each_request_counted_once(monkeypatch):
    away = Away()
    monkeypatch.setattr(LocalBackend, "open", lambda *_: Opened(away, away.close, "nowhere"))
    session, stats = open_session(ODD)
    assert check_all(session, [page(name) for name in ("a", "odd", "b")]) == [ERROR] * 3
    assert session.check(page("a")) is ERROR
    session.close()
    assert stats.get_value("bloom/errors") == stats.get_value("bloom/checked") == 4


def test_stats_have_the_digits_that_mean_something():
    crawler = get_crawler()
    few, many = LocalFilter(1000), LocalFilter(1000)
    few.add(b"one")
    many.add_many(str(number).encode() for number in range(1000))
    told = []
    for filled in (few, many):
        Reporter(crawler).describe(filled.info())
        told.append({key: crawler.stats.get_value(f"bloom/{key}") for key in FROM_INFO})
    assert told[0]["items"] == 1
    assert (told[0]["expected_lost"], told[0]["estimated_fp_rate"]) == (0.0, 0.0)
    assert 1e-15 <= told[1]["estimated_fp_rate"] <= 1e-6
    for numbers in told:
        assert all(len(f"{number:g}") <= 8 for number in numbers.values())
        assert all(number == float(f"{number:g}") for number in numbers.values())


def test_a_filter_that_is_emptied_at_the_start_is_not_called_restored(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    settings = {"JOBDIR": str(tmp_path)}
    first, _ = open_session(settings)
    check_all(first, [page(name) for name in "abc"])
    first.close()
    caplog.clear()
    second, stats = open_session(settings, empty=True)
    assert second.check(page("a")) is NEW
    second.close()
    ours = (record for record in caplog.records if record.name.startswith("scrapy_bloom"))
    (said,) = (record.getMessage() for record in ours)
    assert said.endswith("4.3 MB when full, emptied of 3 fingerprints")
    assert stats.get_value("bloom/restored") == 0


def test_a_spider_class_without_a_name_goes_by_the_name_of_the_class(tmp_path):
    crawler = get_crawler(type("Nameless", (Spider,), {}), {"JOBDIR": str(tmp_path)})
    Session.open(crawler, Reporter(crawler)).close()
    assert read_snapshot(tmp_path / "requests.bloom").identity.spider == "Nameless"


class Unreadable(LocalFilter):
    """A filter that opens, and then cannot be looked at."""

    closed = False

    def info(self):
        raise OSError("a fault that nobody expects")

    def close(self):
        Unreadable.closed = True


def test_what_was_opened_is_closed_if_the_rest_fails(monkeypatch):
    unreadable = Unreadable()
    monkeypatch.setattr(
        LocalBackend, "open", lambda *_: Opened(unreadable, unreadable.close, "nowhere")
    )
    with pytest.raises(OSError, match="nobody expects"):
        open_session()
    assert Unreadable.closed


@pytest.mark.parametrize("name", ["BLOOM_CAPACITY", "BLOOM_CANONICAL", "BLOOM_CANONICAL_RULES"])
def test_a_session_that_cannot_be_opened_is_none(name, tmp_path):
    with pytest.raises(SettingError, match=rf"^{name} = "):
        open_session({name: -1, "JOBDIR": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


def test_a_withdrawn_mark_is_new_once_more():
    session, stats = open_session()
    assert session.check(page("a")) is NEW
    session.withdraw(page("a"))
    session.withdraw(page("never marked"))
    assert len(session.let_through) == 1
    assert [session.check(page("a")) for _ in range(3)] == [NEW, SEEN, SEEN]
    assert session.check(page("never marked")) is NEW
    session.close()
    assert stats.get_value("bloom/withdrawn") == 1
    assert stats.get_value("bloom/let_through") == 1
    assert stats.get_value("bloom/new") == 3


def test_a_withdrawn_step_of_a_redirect_is_let_through_with_its_page():
    session, _ = open_session()
    assert [session.check(page("a")), session.check(redirected("a"))] == [NEW, EXEMPT]
    session.withdraw(redirected("a"))
    assert [session.check(page("a")), session.check(redirected("a"))] == [NEW, EXEMPT]
    assert [session.check(page("a")), session.check(redirected("a"))] == [SEEN, SEEN]
    session.close()


def test_a_request_that_cannot_be_withdrawn_costs_nothing_else():
    session, _ = open_session(ODD)
    session.withdraw(page("odd"))
    assert session.let_through == set()
    session.close()


def test_withdrawn_marks_are_for_the_next_run_too(tmp_path):
    settings = {"JOBDIR": str(tmp_path)}
    session, _ = open_session(settings)
    check_all(session, [page("a"), page("b"), page("c")])
    for name in "abc":
        session.withdraw(page(name))
    assert session.check(page("c")) is NEW
    session.close()
    session, _ = open_session(settings)
    assert session.check(page("a")) is NEW
    session.close()  # nobody asked for b
    session, _ = open_session(settings)
    verdicts = check_all(session, [page("a"), page("b"), page("c"), page("b")])
    assert verdicts == [SEEN, NEW, SEEN, SEEN]
    session.close()
    session, _ = open_session(settings)
    assert session.let_through == set()
    session.close()


def test_a_job_with_local_marks_is_not_moved_to_redis(tmp_path):
    """They would be forgotten without a word."""
    session, _ = open_session({"JOBDIR": str(tmp_path)})
    session.check(page("a"))
    session.close()
    before = everything_in(tmp_path)
    nowhere = {"JOBDIR": str(tmp_path), "BLOOM_REDIS_URL": "redis://127.0.0.1:1"}
    with pytest.raises(StateError, match="a filter in Redis cannot take them over") as error:
        open_session(nowhere)
    assert "BLOOM_BACKEND = 'local'" in str(error.value)
    assert everything_in(tmp_path) == before
    session, _ = open_session({**nowhere, "BLOOM_BACKEND": "local"})
    assert session.check(page("a")) is SEEN
    session.close()
