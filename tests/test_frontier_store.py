"""The store of requests and marks against a simple model, with kills and commits that fail."""

import shutil
import sqlite3
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.examples import share_of
from support.frontiers import NAME, Texts, fill, marks_of, open_store
from support.internals import rows_in_memory, statements_fail

from scrapy_bloom.errors import StateError
from scrapy_bloom.frontier import buckets, file
from scrapy_bloom.frontier.buckets import BucketMaker, Fifo, Lifo
from scrapy_bloom.frontier.store import Store

PATHS = ("0", "-1", "0s", "one.com-1/0", "two.com-2/0")


class Frontier:
    """A store with one queue for each path."""

    def __init__(self, path, kinds):
        self.store = Store(path)
        self.texts = Texts()
        makers = {kind: BucketMaker(self.store, "/job", kind, self.texts) for kind in (Lifo, Fifo)}
        self.queues = {p: makers[kinds[p]].from_crawler(None, f"/job/{p}") for p in PATHS}
        self._makers, self._kinds = makers, kinds

    def renew(self, path):
        """Drop an empty queue and make it anew, as Scrapy's priority queues do."""
        self.queues[path].close()
        self.queues[path] = self._makers[self._kinds[path]].from_crawler(None, f"/job/{path}")


class Model:
    """What a crawl must find after a kill: lists in memory."""

    def __init__(self):
        self.waiting = defaultdict(list)  # path -> numbers, oldest first
        self.under_way = {}  # number -> (path, place among those that were pushed)
        self.marks = set()
        self.withheld = set()
        self.notes = {}

    def stored(self):
        """Return the rows of each path, oldest first."""
        rows = {path: list(numbers) for path, numbers in self.waiting.items()}
        for number, path in self.under_way.items():
            rows[path] = sorted([*rows.get(path, []), number])
        return {path: numbers for path, numbers in rows.items() if numbers}


class StoreMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = Path(mkdtemp())
        # The third kind of path is FIFO, like Scrapy's start queues.
        self.kinds = {path: Fifo if path in {"0s", "two.com-2/0"} else Lifo for path in PATHS}
        file.create(self.folder / NAME, lambda _: None)
        self.frontier = Frontier(self.folder / NAME, self.kinds)
        self.model = Model()
        self.numbers = 0
        self.committed = (self.model.stored(), set(), set(), {})

    def teardown(self):
        self.frontier.store.abandon()
        shutil.rmtree(self.folder)

    @property
    def store(self):
        return self.frontier.store

    @rule(path=st.sampled_from(PATHS), count=st.integers(1, 30))
    def push(self, path, count):
        for _ in range(count):
            self.numbers += 1
            self.frontier.queues[path].push(self.numbers)
            self.model.waiting[path].append(self.numbers)

    @rule(path=st.sampled_from(PATHS), count=st.integers(1, 30))
    def pop(self, path, count):
        for _ in range(count):
            waiting = self.model.waiting[path]
            got = self.frontier.queues[path].pop()
            if not waiting:
                assert got is None
                self.frontier.renew(path)
                return
            expected = waiting.pop(0 if self.kinds[path] is Fifo else -1)
            assert got == expected
            self.model.under_way[got] = path

    @precondition(lambda self: self.model.under_way)
    @rule(data=st.data(), share=st.integers(1, 3))
    def done(self, data, share):
        numbers = sorted(self.model.under_way)
        first = data.draw(st.integers(0, len(numbers) - 1))
        for number in numbers[first::share]:
            self.store.done(self.frontier.texts.taken[number])
            del self.model.under_way[number]

    @rule(marks=st.sets(st.binary(min_size=1, max_size=3)))
    def mark(self, marks):
        self.store.mark(sorted(marks))
        self.model.marks |= marks
        self.model.withheld -= marks

    @rule(marks=st.sets(st.binary(min_size=1, max_size=1)))
    def withhold(self, marks):
        self.store.withhold(marks)
        self.model.withheld |= marks

    @rule(value=st.integers(0, 9))
    def note(self, value):
        self.store.note("key", value)
        self.model.notes["key"] = value

    @rule()
    def commit(self):
        self.store.commit()
        self.remember()

    @rule(after=st.integers(1, 60))
    def commit_fails(self, after):
        with suppress(sqlite3.OperationalError), statements_fail(self.store, after):
            self.store.commit()
            self.remember()

    @rule()
    def checkpoint(self):
        assert file.checkpoint(self.store.path)

    @rule()
    def forget(self):
        self.store.commit()
        self.remember()
        self.store.forget(self.store.newest_mark())
        self.store.commit()
        self.model.marks = set()
        self.remember()

    @rule()
    def kill(self):
        self.store.abandon()
        self.reopen()

    @rule()
    def stop(self):
        self.store.commit()
        self.remember()
        self.store.close()
        self.reopen()

    def remember(self):
        model = self.model
        self.committed = (
            model.stored(),
            set(model.marks),
            set(model.withheld),
            dict(model.notes),
        )

    def reopen(self):
        self.frontier = Frontier(self.folder / NAME, self.kinds)
        self.model = Model()
        stored, marks, withheld, notes = self.committed
        self.model.waiting.update({path: list(numbers) for path, numbers in stored.items()})
        self.model.marks, self.model.withheld = set(marks), set(withheld)
        self.model.notes = dict(notes)
        assert set(self.store.paths()) == set(stored)
        assert set(marks_of(self.store)) == marks
        assert self.store.withheld == withheld
        assert self.store.noted("key") == notes.get("key")

    @invariant()
    def agrees(self):
        for path, queue in self.frontier.queues.items():
            assert len(queue) == len(self.model.waiting[path])
        assert len(self.store) == sum(map(len, self.model.stored().values()))
        assert self.store.withheld == self.model.withheld


StoreMachine.TestCase.settings = settings(
    max_examples=share_of(60), stateful_step_count=40, deadline=None, print_blob=True
)


class TestModel(StoreMachine.TestCase):
    @pytest.fixture(autouse=True)
    def _few_rows_in_memory(self, monkeypatch):
        monkeypatch.setattr(buckets, "_MOST", 4)
        monkeypatch.setattr(buckets, "_LEAST", 2)


def test_rows_beyond_the_first_ones_are_not_in_memory(tmp_path):
    store = open_store(tmp_path)
    queue = fill(store, 20_000)
    assert len(queue) == 20_000
    assert rows_in_memory(queue) <= 1024
    assert [queue.pop() for _ in range(20_000)] == list(reversed(range(20_000)))


def test_many_queues_read_ahead_less_each():
    assert buckets.rows_ahead(1) == 512
    assert buckets.rows_ahead(1_000) * 1_000 <= 65_536
    assert buckets.rows_ahead(100_000) == 8


def test_a_queue_that_is_read_from_its_end_makes_no_larger_file(tmp_path):
    sizes = []
    for order in (1, -1):  # Scrapy's files of newest first are taken over from their end
        (tmp_path / str(order)).mkdir()
        store = open_store(tmp_path / str(order))
        first = store.reserve(store.make("0", None), 6000)
        for batch in (range(3000), range(3000, 6000))[::order]:
            for place in batch[::order]:
                store.put(first + place, bytes(400))
            store.commit()
        store.close()
        sizes.append(store.size)
    assert sizes[1] < 1.2 * sizes[0]


def test_the_number_of_a_bucket_is_used_again(tmp_path):
    store = open_store(tmp_path)
    for name in range(50):
        queue = fill(store, 3, f"host-{name}/0")
        for _ in range(3):
            queue.pop()
        for row in list(store.busy):
            store.done(row)
        store.commit()
    assert store.paths() == {}
    assert store.make("another/0", "another") == 1


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b"SQLite format 3\0", "a file that starts with b'SQLite format 3"),
        (b"hello" * 40, "a file that starts with b'hellohello"),
    ],
)
def test_a_file_of_others_is_refused_and_untouched(tmp_path, content, found):
    path = tmp_path / NAME
    path.write_bytes(content)
    with pytest.raises(StateError, match="It was left as it is") as refused:
        open_store(tmp_path)
    assert str(path) in str(refused.value)
    assert found in str(refused.value)
    assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == [NAME]


def test_a_database_of_others_is_refused(tmp_path):
    path = tmp_path / NAME
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE theirs (id)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StateError, match="found a database of others"):
        open_store(tmp_path)
    assert path.read_bytes() == before


def test_a_newer_format_is_refused(tmp_path):
    open_store(tmp_path).close()
    path = tmp_path / NAME
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 2")
    database.close()
    with pytest.raises(StateError, match="found format version 2, expected version 1"):
        open_store(tmp_path)


def test_a_link_is_refused(tmp_path):
    open_store(tmp_path).close()
    elsewhere = (tmp_path / NAME).rename(tmp_path / "elsewhere")
    (tmp_path / NAME).symlink_to(elsewhere)
    with pytest.raises(StateError, match="found a symbolic link"):
        open_store(tmp_path)


def test_damage_at_any_page_is_found_or_harmless(tmp_path):
    """A page is overwritten: the file is refused as it is, or every request is still right."""
    store = open_store(tmp_path)
    fill(store, 400)
    store.mark([b"%020d" % number for number in range(400)])
    store.commit()
    store.close()
    path = tmp_path / NAME
    whole = path.read_bytes()
    refused = 0
    for start in range(0, len(whole), 4096):
        hurt = whole[:start] + b"\xa5" * 4096 + whole[start + 4096 :]
        path.write_bytes(hurt)
        try:
            store = open_store(tmp_path)
        except StateError as error:
            refused += str(path) in str(error) and path.read_bytes() == hurt
            continue
        numbers = [int(body) for _, body in store.read(0, 1 << 62, 500, newest_first=False)]
        assert numbers == list(range(400))
        store.abandon()
    assert refused >= len(whole) / 4096 * 0.9


def test_the_log_may_be_cut_anywhere(tmp_path):
    """What a cut log leaves is one of the commits, whole."""
    store = open_store(tmp_path)
    queue = fill(store, 0)
    for number in range(30):
        queue.push(number)
        store.mark([b"%02d" % number])
        store.commit()
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path, kept, ignore=lambda *_: ["kept"])
    store.close()
    log = (kept / (NAME + "-wal")).read_bytes()
    assert len(log) > 30 * 4096
    for end in range(0, len(log), 5000):
        again = tmp_path / f"cut-{end}"
        shutil.copytree(kept, again)
        (again / (NAME + "-wal")).write_bytes(log[:end])
        store = open_store(again)
        rows = [int(body) for _, body in store.read(0, 1 << 62, 500, newest_first=False)]
        assert rows == list(range(len(rows)))
        assert marks_of(store) == [b"%02d" % number for number in rows]
        store.abandon()
