"""BLOOM_ settings: read in one place, checked, and documented from that place."""

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.settings import Settings as ScrapySettings
from support.crawling import KEPT, visit

from scrapy_bloom.errors import SettingError
from scrapy_bloom.settings import OPTIONS, Settings
from scrapy_bloom.stats import STATS
from scrapy_bloom.values import MAX_CAPACITY

SOURCE = [path.read_text() for path in (Path(__file__).parents[2] / "scrapy_bloom").rglob("*.py")]


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("CAPACITY", [None], 1_000_000),  # Scrapy's word for the default
        ("CAPACITY", [1e7, "10_000_000", "1e7", "10M"], 10_000_000),
        *(("CAPACITY", [1], 1), ("CAPACITY", [" 2.5K ", "2.5k"], 2500)),
        ("CAPACITY", ["10G"], MAX_CAPACITY),
        ("ERROR_RATE", [0.01, "1e-2", " 0.01 "], 0.01),
        ("WINDOW", ["30d", 2_592_000, "720h", " 30D "], 2_592_000),
        *(("WINDOW", ["1.5h"], 5400), ("WINDOW", [2.5], 2.5), ("WINDOW", [None], None)),
        ("WINDOW", ["36500d"], 3_153_600_000),
        ("REDIS_TIMEOUT", ["0.5"], 0.5),
        ("ON_BACKEND_ERROR", ["Close"], "close"),
    ],
)
def test_each_form_of_a_value_is_read(name, written, value):
    [option] = [option for option in OPTIONS if option.setting == f"BLOOM_{name}"]
    for each in written:
        assert Settings(ScrapySettings({f"BLOOM_{name}": each}))[option] == value


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        (
            "CAPACITY",
            [0, -1, 1e30, "inf", "nan", " ", "M", "10MB", "11G", 1.5, "0.5", True, b"10", 10**400],
            r"from 1 to 10,000,000,000, such as 10_000_000",
        ),
        ("ERROR_RATE", [0, 1, -0.1, "abc", "", "nan", True, "1%", 1e-16], "from 1e-15 to below 1"),
        (
            "WINDOW",
            [0, "-5d", "30 days", 1e30, "nan", "", "d", True, b"30d", [30], "36501d", 0.5, "30dd"],
            "a time from 1 second.*'30d'",
        ),
        *(("BACKEND", ["memcached"], ""), ("REDIS_URL", [6379], ""), ("REDIS_KEY", [None], "")),
        *(("REDIS_TIMEOUT", [0], ""), ("CANONICAL", ["unusual"], "")),
        ("ON_BACKEND_ERROR", ["ignore", "allow", "wait"], ""),
    ],
)
def test_a_wrong_value_is_refused_with_name_value_and_what_it_must_be(name, values, said):
    for value in values:
        told = rf"^BLOOM_{name} = {re.escape(repr(value))}: must be .*{said}"
        with pytest.raises(SettingError, match=told):
            Settings({f"BLOOM_{name}": value})


NAMES = [option.setting for option in OPTIONS]
ONE = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
ANYTHING = ONE | st.lists(ONE | st.lists(ONE)) | st.dictionaries(st.text(), ONE) | st.tuples(ONE)


@given(st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=2))
def test_any_value_is_read_or_refused(written):
    with suppress(SettingError):
        Settings(written)


def test_the_server_of_scrapy_redis_is_taken_over_and_its_password_not_shown():
    written = {"REDIS_PARAMS": {"password": "s3cr3t", "db": 1}, "REDIS_HOST": "far", "REDIS_DB": 2}
    read = Settings(written)
    assert read.redis_params == {"password": "s3cr3t", "host": "far", "db": 2}
    assert "s3cr3t" not in repr(read)
    with pytest.raises(SettingError, match="REDIS_PARAMS is a str: must be a dict") as error:
        Settings({"REDIS_PARAMS": "password=s3cr3t"})
    assert "s3cr3t" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("BLOOM_CAPACTIY", "; did you mean BLOOM_CAPACITY?"),
        ("BLOOM_REDIS_TIME_OUT", "; did you mean BLOOM_REDIS_TIMEOUT?"),
        ("BLOOM_DROP_PARAMS", "; did you mean BLOOM_CANONICAL_DROP_PARAMS?"),
        ("BLOOM_ON_REDIS_ERROR", "; did you mean BLOOM_ON_BACKEND_ERROR?"),
        *((name, ".") for name in ("BLOOM_NONSENSE", "BLOOM_", "BLOOM_LOG", "BLOOM_ENABLED")),
    ],
)
def test_an_unknown_setting_is_reported_with_the_one_that_was_meant(name, hint, caplog):
    Settings({name: False, "BLOOMFILTER_BIT": 30, "JOBDIR": ""})
    (record,) = caplog.records
    assert record.getMessage() == f"There is no setting {name}{hint}"


@pytest.mark.server
async def test_a_crawl_reads_its_settings_once(tmp_path, caplog):
    theirs = {"REQUEST_FINGERPRINTER_CLASS": "scrapy_bloom.CanonicalRequestFingerprinter"}
    settings = {"JOBDIR": str(tmp_path), **KEPT, **theirs, "BLOOM_CAPACTY": 5}
    _, site = await visit({"/": []}, settings=settings)
    assert site.hits == {"/": 1}
    assert caplog.text.count("There is no setting BLOOM_CAPACTY") == 1


@pytest.mark.parametrize(
    ("pattern", "known"),
    [
        (r'"(BLOOM_[A-Z_]+)"', [option.setting for option in OPTIONS]),
        (r'"(bloom/[a-z_/{}]+)"', [stat.key for stat in STATS]),
    ],
)
def test_every_name_in_the_source_is_in_the_list_that_the_docs_are_made_from(pattern, known):
    named = {name for text in SOURCE for name in re.findall(pattern, text)}
    assert named == set(known)
    assert len(named) == len(known)
