"""BLOOM_ settings: read in one place, checked, and documented from that place."""

import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.settings import Settings as ScrapySettings

from scrapy_bloom.canonical.rules import Rule
from scrapy_bloom.errors import SettingError
from scrapy_bloom.options import CAPACITY, OPTIONS, OnBackendError
from scrapy_bloom.settings import Settings
from scrapy_bloom.stats import STATS

ROOT = Path(__file__).parents[2]
SOURCE = [path.read_text() for path in (ROOT / "scrapy_bloom").rglob("*.py")]


def test_scrapy_takes_none_for_the_default():
    assert Settings(ScrapySettings({"BLOOM_CAPACITY": None}))[CAPACITY] == 1_000_000


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("BLOOM_CAPACITY", "10M", 10_000_000),
        ("BLOOM_ERROR_RATE", "1e-4", 1e-4),
        ("BLOOM_BACKEND", "redis", "redis"),
        ("BLOOM_REDIS_URL", "redis://somewhere", "redis://somewhere"),
        ("BLOOM_REDIS_KEY", "crawl", "crawl"),
        ("BLOOM_REDIS_SHARDS", "3", 3),
        ("BLOOM_REDIS_TIMEOUT", "0.5", 0.5),
        ("BLOOM_ON_BACKEND_ERROR", "Wait", OnBackendError.WAIT),
        ("BLOOM_ON_BACKEND_ERROR", OnBackendError.CLOSE, OnBackendError.CLOSE),
        ("BLOOM_CANONICAL", "usual", "usual"),
        ("BLOOM_CANONICAL_DROP_PARAMS", "sid, x_*", ("sid", "x_*")),
        ("BLOOM_CANONICAL_KEEP_PARAMS", ["utm_id"], ("utm_id",)),
        (
            "BLOOM_CANONICAL_RULES",
            '{"a.example": {"steps": ["www"]}}',
            {"a.example": Rule(steps=("www",))},
        ),
    ],
)
def test_what_is_written_is_read(name, written, value):
    read = Settings({name: written})
    [option] = [option for option in OPTIONS if option.setting == name]
    assert read[option] == value


def test_the_server_of_scrapy_redis_is_taken_over():
    written = {"REDIS_PARAMS": {"password": "s3cr3t", "db": 1}, "REDIS_HOST": "far", "REDIS_DB": 2}
    read = Settings(written)
    assert read.redis_params == {"password": "s3cr3t", "host": "far", "db": 2}
    assert "s3cr3t" not in repr(read)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BLOOM_CAPACITY", 0),
        ("BLOOM_ERROR_RATE", 1),
        ("BLOOM_BACKEND", "memcached"),
        ("BLOOM_REDIS_URL", 6379),
        ("BLOOM_REDIS_KEY", None),
        ("BLOOM_REDIS_SHARDS", 0),
        ("BLOOM_REDIS_TIMEOUT", 0),
        ("BLOOM_ON_BACKEND_ERROR", "ignore"),
        ("BLOOM_CANONICAL", "unusual"),
        ("BLOOM_CANONICAL_DROP_PARAMS", 1),
        ("BLOOM_CANONICAL_KEEP_PARAMS", [""]),
        ("BLOOM_CANONICAL_RULES", "www"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name, value):
    with pytest.raises(SettingError, match=rf"^{name} = {re.escape(repr(value))}: must be "):
        Settings({name: value})


DEEP = "[" * 100_000


NAMES = [option.setting for option in OPTIONS]
ONE = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
ANYTHING = ONE | st.lists(ONE | st.lists(ONE)) | st.dictionaries(st.text(), ONE) | st.tuples(ONE)


@given(st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=2))
def test_any_value_is_read_or_refused(written):
    with suppress(SettingError):
        Settings(written)


def test_redis_params_that_are_no_dict_are_refused_and_not_shown():
    with pytest.raises(SettingError, match="REDIS_PARAMS is a str: must be a dict") as error:
        Settings({"REDIS_PARAMS": "password=s3cr3t"})
    assert "s3cr3t" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("BLOOM_ERRORRATE", "BLOOM_ERROR_RATE"),
        ("BLOOM_ERROR_RATES", "BLOOM_ERROR_RATE"),
        ("BLOOM_REDIS_TIME_OUT", "BLOOM_REDIS_TIMEOUT"),
        ("BLOOM_URL", "BLOOM_REDIS_URL"),
        ("BLOOM_DROP_PARAMS", "BLOOM_CANONICAL_DROP_PARAMS"),
        ("BLOOM_ON_REDIS_ERROR", "BLOOM_ON_BACKEND_ERROR"),
        ("BLOOM_NONSENSE", None),
        ("BLOOM_", None),
        ("BLOOM_LOG", None),
    ],
)
def test_a_name_is_only_guessed_where_it_is_like_one(name, meant, caplog):
    Settings({name: 1})
    (record,) = caplog.records
    hint = f"; did you mean {meant}?" if meant else "."
    assert record.getMessage() == f"There is no setting {name}{hint}"


@pytest.mark.parametrize("name", ["BLOOM_ENABLED", "BLOOM_DISABLED"])
def test_who_wants_to_switch_the_filter_off_is_told_how(name, caplog):
    Settings({name: False})
    (record,) = caplog.records
    assert record.getMessage() == (
        f"There is no setting {name}. To disable the filter set another DUPEFILTER_CLASS, such as"
        f" Scrapy's own: 'scrapy.dupefilters.RFPDupeFilter'."
    )


def test_every_setting_is_in_the_list():
    named = {name for text in SOURCE for name in re.findall(r'"(BLOOM_[A-Z_]+)"', text)}
    assert named == {option.setting for option in OPTIONS}
    assert len(named) == len(OPTIONS) <= 17


def test_every_stat_has_a_meaning_and_is_named_in_one_place():
    named = {name for text in SOURCE for name in re.findall(r'"(bloom/[a-z_/{}]+)"', text)}
    assert named == {stat.key for stat in STATS}
    assert len(named) == len(STATS) <= 27
    for text in SOURCE:
        assert "STATS: Final" in text or not re.search(r'"bloom/', text)


def test_the_docs_have_the_tables_of_the_code():
    command = [sys.executable, str(ROOT / "docs" / "tables.py")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_python_of_the_docs_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where it saves a filter
    text = (ROOT / "docs" / "guides" / "without-scrapy.md").read_text()
    code, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    lines = [line.partition("#") for line in code.splitlines() if line]
    scope = {}
    for line, _, comment in lines:
        if comment and "," not in comment.split(":")[0].replace("[False, False]", ""):
            assert repr(eval(line, scope)) == comment.split(":")[0].strip()
        else:
            exec(line, scope)
