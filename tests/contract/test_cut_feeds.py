"""A feed that a kill has cut off: what comes after is read, however large the feed is."""

import csv
import io
import itertools
import tracemalloc
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.extensions.feedexport import FileFeedStorage

from scrapy_bloom.crawl.scrapy import cut_feeds
from scrapy_bloom.crawl.scrapy.cut_feeds import end_last_line

CELLS = st.text(st.sampled_from("a \",\n\r'é"), max_size=8)
ROWS = st.lists(st.lists(CELLS, min_size=2, max_size=2), min_size=1, max_size=30)
AFTER = ["after", "the kill"]


def feed_of(path, **options):
    feed_options = {"encoding": None, **options}
    return SimpleNamespace(
        storage=FileFeedStorage(str(path)), feed_options=feed_options, format="csv"
    )


def written(rows, **options):
    file = io.StringIO(newline="")
    csv.writer(file, **options).writerows(rows)
    return file.getvalue().encode()


def read(content, **options):
    return [*csv.reader(io.StringIO(content.decode(errors="replace"), newline=""), **options)]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("feeds") / "items.csv"


@given(
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    rows=ROWS,
    cut=st.integers(0, 400),
    window=st.sampled_from([4, 16, 64]),
    delimiter=st.sampled_from(",;"),
)
def test_wherever_a_feed_was_cut_what_comes_after_is_read(
    path, quoting, rows, cut, window, delimiter
):
    """The rows before it are as they were."""
    lines = [written([row], quoting=quoting, delimiter=delimiter) for row in rows]
    left = max(0, sum(map(len, lines)) - cut)
    path.write_bytes(b"".join(lines)[:left])
    longest = max(len(cell) for row in rows for cell in row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut_feeds, "_WINDOW", max(window, 4 * longest))
        end_last_line(feed_of(path, item_export_kwargs={"delimiter": delimiter}), unclean=True)
    content = path.read_bytes() + written([AFTER], delimiter=delimiter)
    found = read(content, delimiter=delimiter)
    assert found[-1] == AFTER
    whole = sum(end <= left for end in itertools.accumulate(map(len, lines)))
    assert found[:whole] == rows[:whole]


@pytest.mark.parametrize("cell", ['a long "quoted" text, of some\nlines', "no quotes at all"])
@pytest.mark.parametrize("unclean", [True, False])
def test_a_large_feed_is_not_read_whole(tmp_path, cell, unclean):
    path = tmp_path / "items.csv"
    path.write_bytes(written([[cell, "text"] * 4]) * 600_000)
    before = path.stat().st_size
    assert before > 40_000_000
    tracemalloc.start()
    end_last_line(feed_of(path), unclean=unclean)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size == before
    assert most < (20_000_000 if unclean else 1_000_000)
