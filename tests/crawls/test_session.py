"""What is decided about each request, and what becomes of marks whose request was lost."""

from scrapy import Request
from scrapy.utils.test import get_crawler
from support.filters import contents
from support.sessions import check_all, open_session, page

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.crawl.report import Verdict

NEW, SEEN, EXEMPT, ERROR = Verdict


def redirected(name):
    """Return a request for a page that has redirected to itself."""
    url = page(name).url
    return Request(url, meta={"redirect_urls": [url]})


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


def test_a_withdrawn_step_of_a_redirect_is_let_through_with_its_page():
    session, _ = open_session()
    assert check_all(session, [page("a"), redirected("a")]) == [NEW, EXEMPT]
    session.withdraw(redirected("a"))
    assert check_all(session, [page("a"), redirected("a")]) == [NEW, EXEMPT]
    assert check_all(session, [page("a"), redirected("a")]) == [SEEN, SEEN]
    session.close()


def test_withdrawn_marks_are_for_the_next_run_too(tmp_path):
    settings = {"JOBDIR": str(tmp_path), **ODD}
    session, crawler = open_session(settings)
    check_all(session, [page("a"), page("b"), page("c")])
    for name in ("a", "b", "c", "never marked", "odd"):  # of the last one nothing is known
        session.withdraw(page(name))
    assert check_all(session, [page("c")] * 2) == [NEW, SEEN]
    session.close()
    assert crawler.stats.get_value("bloom/withdrawn") == 3
    session, _ = open_session(settings)
    assert session.check(page("a")) is NEW
    session.close()  # nobody asked for b
    session, _ = open_session(settings)
    verdicts = check_all(session, [page("a"), page("b"), page("c"), page("b")])
    assert verdicts == [SEEN, NEW, SEEN, SEEN]
    session.close()


def test_a_job_with_local_marks_is_not_moved_to_redis(tmp_path, caplog):
    """They would be forgotten without a word."""
    session, _ = open_session({"JOBDIR": str(tmp_path)})
    session.check(page("a"))
    session.close()
    before = contents(tmp_path)
    nowhere = {"JOBDIR": str(tmp_path), "BLOOM_REDIS_URL": "redis://127.0.0.1:1"}
    crawler = get_crawler(settings_dict=nowhere)
    crawler.spidercls.name = "books"
    dupefilter = BloomDupeFilter.from_crawler(crawler)
    assert dupefilter.request_seen(page("a")) is False
    dupefilter.close("finished")
    assert "a filter in Redis would suppress pages" in caplog.text
    assert "BLOOM_BACKEND = 'local'" in caplog.text
    assert contents(tmp_path) == before
    session, _ = open_session({**nowhere, "BLOOM_BACKEND": "local"})
    assert session.check(page("a")) is SEEN
    session.close()
