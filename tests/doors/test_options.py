"""Options: numbers as people write them, and names in the words of whoever reads them."""

import pytest

from scrapy_bloom.errors import BloomError, SettingError
from scrapy_bloom.options import (
    MAX_CAPACITY,
    read_age,
    read_capacity,
    read_error_rate,
    read_window,
    write_size,
    write_span,
)


@pytest.mark.parametrize(
    ("written", "items"),
    [
        (1, 1),
        (10_000_000, 10_000_000),
        (1e7, 10_000_000),
        ("10_000_000", 10_000_000),
        ("1e7", 10_000_000),
        ("10M", 10_000_000),
        ("10m", 10_000_000),
        (" 2.5K ", 2500),
        ("10G", MAX_CAPACITY),
    ],
)
def test_a_capacity_may_be_written_in_these_ways(written, items):
    assert read_capacity("BLOOM_CAPACITY", written) == items


@pytest.mark.parametrize(
    "written",
    [
        *(0, -1, 1e30, "1e30", float("inf"), "inf", "nan", "", "  ", "M", "10MB", "ten", "11G"),
        *(1.5, "0.5", None, True, b"10", [10], 10**400),
    ],
)
def test_any_other_capacity_is_refused_with_name_value_range_and_memory(written):
    with pytest.raises(SettingError) as error:
        read_capacity("BLOOM_CAPACITY", written)
    text = str(error.value)
    assert text.startswith(f"BLOOM_CAPACITY = {written!r}: ")
    assert "from 1 to 10,000,000,000" in text
    assert "at an error rate of 1e-06" in text
    assert isinstance(error.value, BloomError)


def test_an_asked_size_is_told_its_memory():
    with pytest.raises(SettingError, match=r"20,000,000,000 items take about 88\.0 GB"):
        read_capacity("BLOOM_CAPACITY", "20G")


@pytest.mark.parametrize("written", [0.01, "0.01", "1e-2", " 0.01 "])
def test_an_error_rate_may_be_written_in_these_ways(written):
    assert read_error_rate("BLOOM_ERROR_RATE", written) == 0.01


@pytest.mark.parametrize(
    "written", [0, 1, 1.5, -0.1, "abc", "", "nan", float("nan"), "inf", None, True, "1%", 1e-16]
)
def test_any_other_error_rate_is_refused_with_name_value_and_range(written):
    with pytest.raises(SettingError) as error:
        read_error_rate("BLOOM_ERROR_RATE", written)
    assert str(error.value).startswith(f"BLOOM_ERROR_RATE = {written!r}: ")
    assert "from 1e-15 to below 1" in str(error.value)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0.0 kB"),
        (49_800, "49.8 kB"),
        (4.34e6, "4.3 MB"),
        (44e9, "44.0 GB"),
        (4e13, "40,000.0 GB"),
    ],
)
def test_sizes_are_written_for_people(size, words):
    assert write_size(size) == words


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        *(("30d", 2_592_000), ("12h", 43_200), ("90m", 5400), ("2W", 1_209_600), ("45s", 45)),
        ("1.5h", 5400),
        *((1, 1), ("3600", 3600), (2.5, 2.5), (" 7d ", 604_800), ("36500d", 3_153_600_000)),
    ],
)
def test_a_window_may_be_written_in_these_ways(written, seconds):
    assert read_window("BLOOM_WINDOW", written) == seconds
    assert read_age("age", written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        *(0, -1, "0", "-5d", "30 days", "1e30", 1e30, float("inf"), "nan", "", "d", True, b"30d"),
        *([30], "36501d", 0.5, "thirty", "30dd"),
    ],
)
def test_any_other_window_is_refused_with_what_to_write(written):
    with pytest.raises(SettingError) as error:
        read_window("BLOOM_WINDOW", written)
    assert str(error.value).startswith(f"BLOOM_WINDOW = {written!r}: must be a time from 1 second")
    assert "'30d'" in str(error.value)


@pytest.mark.parametrize("written", ["30d", "12h", "90m", "2w", "45s", "2.5s"])
def test_a_time_is_shown_as_it_was_written(written):
    assert write_span(read_window("x", written)) == written
