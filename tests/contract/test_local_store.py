"""The store of a job: what a commit holds, a kill leaves, and damage does."""

import copy
import itertools
import os
import random
import shutil
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from support.contract import fingerprints, lines_of, share_of
from support.internals import database_of, marks_in_memory
from support.numbered_commits import Commits, check, copied, hasty, log_of
from support.windows import LONGEST, PAGES, WINDOW, Clock, WindowMachine

from scrapy_bloom import file
from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.crawl.outcomes import REDIRECTED
from scrapy_bloom.errors import StateError
from scrapy_bloom.filter import slices
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.filter.stored import StoredFilter
from scrapy_bloom.local import marks
from scrapy_bloom.local import store as module
from scrapy_bloom.local.store import NUMBER_BITS, Store, reading


@pytest.fixture
def path(tmp_path):
    return tmp_path / "bloom.sqlite"


QUEUES = "abcd"


class StoreMachine(WindowMachine):
    """A store, and what it should hold."""

    window = None

    def __init__(self):
        self.patch = pytest.MonkeyPatch()
        hasty(self.patch.setattr)
        self.folder, self.numbers = Path(mkdtemp()), count()
        self.path = self.folder / "first" / "bloom.sqlite"
        self.path.parent.mkdir()
        self.rows, self.notes = {}, {}
        self.taken, self.held = set(), Counter()
        super().__init__()
        self.commit()

    def teardown(self):
        self.store.abandon()
        self.patch.undo()
        shutil.rmtree(self.folder)

    def open(self):
        fresh = LocalFilter(20, 1e-9, window=self.window, clock=self.clock)
        self.store = Store(self.path, fresh)

    @property
    def filter(self):
        return self.store.filter

    @rule(page=st.sampled_from(PAGES))
    def withhold(self, page):
        self.add(page)
        self.held[page] += 1
        self.store.marks.withhold([page])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        page = data.draw(st.sampled_from(sorted(self.held)))
        self.held.subtract([page])
        if not self.held[page]:
            del self.held[page]
        self.store.marks.withhold([page], is_over=True)

    @rule(name=st.sampled_from(QUEUES), size=st.sampled_from([0, 5, 500, 20_000]))
    def push(self, name, size):
        body = random.randbytes(size)
        self.rows[self.store.push(self.store.queue(name, None), body)] = body

    @rule(name=st.sampled_from(QUEUES), newest=st.booleans())
    def take(self, name, newest):
        number = self.store.find(name)
        if number is None:
            return
        expected = sorted(self.waiting(number), reverse=newest)
        found = [*self.store.read(number, newest=newest)]
        assert found == [(row, self.rows[row]) for row in expected]
        for row, _ in found[:1]:
            self.store.take(row)
            self.taken.add(row)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def done(self, data):
        row = data.draw(st.sampled_from(sorted(self.rows)))
        self.store.delete(row)
        del self.rows[row]
        self.taken.discard(row)

    @rule(key=st.sampled_from("kl"), value=st.sampled_from([1, "text", b"bytes", 0.5]))
    def note(self, key, value):
        self.store.meta[key] = value
        self.notes[key] = value

    @rule()
    def commit(self):
        self.store.commit()
        self.save()

    def save(self):
        model = self.known, self.ages, self.lapsed, self.rows, self.notes
        self.saved, self.saved_held = copy.deepcopy(model), {*self.held}

    @rule()
    def commit_on_a_full_disk(self):
        database_of(self.store).execute("PRAGMA max_page_count = 1")  # as many as there are
        with suppress(sqlite3.OperationalError):  # else there was room in the file
            self.commit()
        database_of(self.store).execute("PRAGMA max_page_count = 1000000")

    @rule()
    def kill(self):
        self.store.log.wait()
        self.path = copied(self.path, self.folder / str(next(self.numbers)))
        self.store.abandon()
        self.begin_again()

    @rule()
    def kill_after_a_commit(self):
        self.commit()
        bits, items = self.bits(), self.filter.items
        held = [page for page in self.held if page in self.filter]  # others are let through
        self.kill()
        assert self.bits() == bits
        if not self.window:  # else what is held may be over
            assert self.filter.items == items - len(held)

    @rule()
    def close_and_open(self):
        self.store.close()
        assert [one.name for one in self.path.parent.iterdir()] == ["bloom.sqlite"]
        self.save()
        self.begin_again()
        assert self.store.clean

    def begin_again(self):
        self.held, self.taken = Counter(), set()
        self.open()
        self.known, self.ages, self.lapsed, self.rows, self.notes = copy.deepcopy(self.saved)
        for page in self.saved_held:
            self.known.pop(page, None)
        self.save()

    @invariant()
    def it_holds_what_the_model_holds(self):
        assert len(self.store) == len(self.rows)
        assert self.store.in_flight == len(self.taken)
        for queue in map(self.store.find, QUEUES):
            if queue is not None:
                assert self.store.waiting(queue) == len(self.waiting(queue))
        for key in "kl":
            assert self.store.meta.get(key) == self.notes.get(key)
        self.ask_for(sorted({*PAGES, *self.known}))

    def waiting(self, number):
        return [row for row in self.rows.keys() - self.taken if row >> NUMBER_BITS == number]

    def bits(self):
        return [(one.id, one.since, one.items, one.touched()) for one in self.filter.slices]


class WindowedMachine(StoreMachine):
    window = WINDOW


TestStore = StoreMachine.TestCase
TestWindowed = WindowedMachine.TestCase
QUICK = settings(deadline=None, max_examples=share_of(20), stateful_step_count=30)
TestStore.settings = TestWindowed.settings = QUICK


# Damage


@pytest.fixture
def template(tmp_path, monkeypatch):
    """A file that was killed in a run, after some checkpoints, and one that was closed."""
    hasty(monkeypatch.setattr)
    commits = Commits(tmp_path / "bloom.sqlite")
    for _ in range(60):
        commits.step()
    commits.store.log.wait()
    killed = copied(commits.store.path, tmp_path / "killed")
    commits.store.close()
    return killed, copied(commits.store.path, tmp_path / "closed")


def cut(path, dice):
    os.truncate(path, dice.randrange(path.stat().st_size))


def flip_a_bit(path, dice):
    content = bytearray(path.read_bytes())
    content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    path.write_bytes(content)


def overwrite(path, dice):
    """Put anything, zeros, or another page into a page."""
    content = bytearray(path.read_bytes())
    one, other = (4096 * n for n in dice.sample(range(1, len(content) // 4096), 2))
    page = dice.choice([dice.randbytes(4096), bytes(4096), content[other : other + 4096]])
    content[one : one + 4096] = page
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("which", "harm"),
    [
        *itertools.product(["killed", "closed"], [cut, flip_a_bit, overwrite]),
        *itertools.product(["log"], [cut, flip_a_bit]),
    ],
)
def test_damage_is_refused_or_harmless(tmp_path, template, monkeypatch, which, harm):
    dice, times, refused = random.Random(f"{which} {harm.__name__}"), share_of(40), 0
    for number in range(times):
        checked = number % 2  # else as a large file, which is not read through if it was closed
        monkeypatch.setattr(module, "CHECKED_BYTES", 64 << 20 if checked else 0)
        path = copied(template[which == "closed"], tmp_path / str(number))
        harm(log_of(path) if which == "log" else path, dice)
        before = path.read_bytes()
        try:
            store = Store(path, LocalFilter(300, 1e-9))
        except StateError as refusal:
            refused, said = refused + checked, str(refusal)
            assert str(path) in said
            assert "xpected" in said
            assert path.read_bytes() == before
            continue
        try:
            check(store, whole=which == "log")
        except sqlite3.DatabaseError:  # found in mid-run, which ends the crawl
            assert not checked
        store.abandon()
    if harm is cut and which == "closed":
        assert refused > times // 4  # a page that nothing uses may lose its end
    elif harm is flip_a_bit or which == "log":  # of a file that was cut the log may have the rest
        assert refused < times // 2


def put(table, row):
    """Return what gives a file a row whose checksum is right; it is a function of a request's."""
    return lambda database, request: file.put(database, table, [row(request)])


def move(row):
    """Return what has a request in another row, with the right checksum."""

    def change(database, request):
        database.execute("DELETE FROM requests WHERE id = ?", (request,))
        file.put(database, "requests", [row(request)])

    return change


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE counters SET request = 1",
        "UPDATE meta SET value = x'00112233445566778899aabbccddeeff' WHERE key = 'secret'",
        "UPDATE slices SET blocks = 1",
        "UPDATE blocks SET bits = CAST(x'ff' || substr(bits, 2) AS BLOB)",  # that nobody has set
        "UPDATE queues SET path = path || '1'",
        "UPDATE again SET fingerprint = x'00'",
        "UPDATE ages SET last = 0",
        "UPDATE marks SET size = 10",
        "DELETE FROM counters",
        "DELETE FROM meta WHERE key = 'secret'",
        "DELETE FROM requests",
        "DELETE FROM requests WHERE id = (SELECT max(id) FROM requests)",
        "DELETE FROM queues",
        "DELETE FROM failed",  # of a lost log, else only a waiting request would be missed
        move(lambda row: (row - 1, b"of an earlier commit")),
        move(lambda row: (row ^ 3 << NUMBER_BITS, b"in another queue")),
        put("queues", lambda _: (1, "other/0", "other")),  # of a number that there is
        put("queues", lambda _: (3, "other/0", "other")),  # without requests
    ],
)
def test_any_other_row_that_is_not_what_was_written_refuses_the_file(path, monkeypatch, change):
    hasty(monkeypatch.setattr)
    store = Store(path, LocalFilter(20_000))
    store.filter.add_many(fingerprints(150))
    store.close()
    store = Store(path)
    store.filter.add_aged(PAGES[0], 60)
    store.filter.forget(PAGES[0])
    store.filter.add_aged(PAGES[1], 60)
    names = "one/0", "one/0", "one/0", "two/0", "two/0", "two/0"
    rows = [store.push(store.queue(name, name[:3]), b"body") for name in names]
    store.fail(rows.pop(1), FailedPage("404", "", 1.0, 0, "", unparsed=True, way=(), body=b""))
    store.delete(rows.pop(1))
    store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        if isinstance(change, str):
            assert database.execute(change).rowcount
        else:
            change(database, rows[2])
    before = path.read_bytes()
    with pytest.raises(StateError, match=f"{path}: found damage.*start over"):
        Store(path)
    assert path.read_bytes() == before


def test_each_request_that_is_missing_changes_the_tally(path):
    """Also those of which only zeros would be left in the bits of a square that are kept."""
    rows = [1, 1 << 16, 1 << 30, 5 << NUMBER_BITS | 1 << 16, 6 << NUMBER_BITS | 7]
    assert all(map(file.weight, rows))
    file.write(path, {"requests": [(row, b"body") for row in rows]})
    with closing(sqlite3.connect(path)) as database:
        assert file.tally(database) == sum(map(file.weight, rows))


# What is refused


def test_a_log_without_its_file_is_refused(path):
    store = Store(path)
    store.filter.add(PAGES[0])
    store.commit()
    path.unlink()
    log = log_of(path).read_bytes()
    with pytest.raises(StateError, match="-wal: found a log that belongs to another file"):
        Store(path)
    assert not path.exists()
    assert log_of(path).read_bytes() == log
    store.abandon()


# Readers


def test_a_reader_sees_the_last_commit_beside_a_run_and_after_a_kill(path, tmp_path):
    store = Store(path, LocalFilter(500, 1e-4, window=3600))
    queue = store.queue("0", None)
    store.filter.add(PAGES[0])
    row = store.push(queue, b"body")
    store.meta["spider"] = "tree"
    store.commit()
    store.filter.add(PAGES[1])
    killed = copied(path, tmp_path / "killed")  # the log, and no index of it
    for where in (path, killed):
        before = where.read_bytes(), log_of(where).read_bytes()
        assert LocalFilter.load(where).contains_many(PAGES[:2]) == [True, False]
        with reading(where) as reader:
            assert reader.stored.contains_many(PAGES[:2]) == [True, False]
            assert [*reader.read(queue, newest=True)] == [(row, b"body")]
            assert (reader.meta["spider"], reader.clean) == ("tree", False)
        assert (where.read_bytes(), log_of(where).read_bytes()) == before
    store.close()
    before = path.read_bytes()
    with reading(path) as reader:
        assert reader.stored.contains_many(PAGES[:2]) == [True, True]
        assert reader.clean
    assert path.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["bloom.sqlite", "killed"]


@pytest.mark.parametrize("window", [None, WINDOW])
def test_a_reader_says_of_each_mark_what_the_crawl_says(path, monkeypatch, window):
    """It reads a few blocks, and the journal only for marks that are in none of these."""
    hasty(monkeypatch.setattr)
    chance, clock, pages = random.Random(7), Clock(), fingerprints(400)
    crawl = LocalFilter(300, 1e-9, window=window, clock=clock)
    store = Store(path, crawl)
    for _ in range(40):
        for page in chance.sample(pages, 12):
            crawl.add(page)
        crawl.forget_many(chance.sample(pages, 3))
        store.commit()
        clock.now += WINDOW / 20
        with file.reading(path) as database:
            stored = StoredFilter(database, store.meta, clock.now)
            said, info = stored.contains_many(pages), stored.info()
        assert said == crawl.contains_many(pages)
        assert info.items == crawl.items
        if window is None:
            assert info.bytes == pytest.approx(crawl.info().bytes, rel=0.3)
            assert replace(info, bytes=crawl.info().bytes) == crawl.info()
    assert 100 < sum(said) < 399
    with file.reading(path) as database:
        later = StoredFilter(database, store.meta, clock.now + LONGEST)
        assert any(later.contains_many(pages)) is (window is None)
    store.close()


def test_a_reader_checks_only_what_it_reads(path):
    """Of a large file, everything else may take seconds."""
    with closing(Store(path, LocalFilter())) as store:
        rows = [store.push(store.queue("0", None), b"body") for _ in range(2)]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE requests SET crc = 0 WHERE id = ?", rows[:1])
        database.execute("UPDATE counters SET request = 0 WHERE id = 2")
    with reading(path) as reader:
        assert [reader.get(row) for row in rows] == [None, b"body"]


def test_a_reader_that_comes_before_a_runs_first_commit_sees_one_commit_to_its_end(path):
    with closing(Store(path, LocalFilter(500))) as store:
        store.push(store.queue("0", None), b"body")
    with closing(Store(path)) as run, file.reading(path) as reader:
        before = file.read_counters(reader)
        for _ in range(500):
            run.push(run.queue("1", None), bytes(5000))
        run.commit()
        run.log.catch_up()
        assert file.check_tally(reader)
        assert file.read_counters(reader) == before


def test_a_foreign_reader_with_an_open_transaction_only_makes_the_log_longer(path, monkeypatch):
    hasty(monkeypatch.setattr)
    run = Commits(path)
    run.step()
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM requests").fetchone()
        while log_of(path).stat().st_size < 8 << 20:  # of which 4 would be kept
            run.step()
        reader.execute("COMMIT")
        for _ in range(3):  # copies the log, begins it again and cuts it, writes on
            run.step()
        assert log_of(path).stat().st_size < 5 << 20
        run.store.close()
        assert log_of(path).exists()  # for the reader is still connected
    with closing(Store(path)) as store:
        assert store.clean
        assert check(store) == run.number
    assert not log_of(path).exists()


# The traps


def test_a_pass_begins_at_once_and_writes_few_blocks_with_each_commit(path):
    """Else it would stop the crawl: a filter for 100,000,000 pages has 50,000 blocks."""
    store, taken, blocks = Store(path, LocalFilter(1_000_000)), [], []
    for pages in 10, 2_000:
        store.filter.add_many(fingerprints(pages, f"of {pages}"))
        store.commit()
        taken.append(lines_of((marks, slices), store.marks.begin_pass))
    assert taken[0] == taken[1]
    changed = {*store.filter.slices[0].changed()}
    database_of(store).set_trace_callback(
        lambda each: blocks.append(int(each.split("(")[1].split(",")[0])) if "blocks" in each else 0
    )
    while store.marks.passing:
        before = len(blocks)
        store.commit()
        assert len(blocks) - before <= marks.BLOCKS_AT_ONCE
    assert sorted(blocks) == [1 << 32 | index for index in sorted(changed)]
    assert not store.filter.slices[0].dirty.any()
    store.abandon()


def test_queues_are_written_when_they_come_and_go_and_leave_nothing_behind(path):
    """A crawl meets hosts without end, and each pair of host and priority is a queue."""
    store, written = Store(path, LocalFilter()), []
    database_of(store).set_trace_callback(written.append)
    stays = store.push(store.queue("stays/0", "stays"), b"body")
    for _ in range(50):
        row = store.push(store.queue("stays/0", "stays"), b"body")
        store.commit()
        store.delete(row)
    assert sum("queues" in each for each in written) == 1
    for number in range(50):
        row = store.push(store.queue(f"host-{number}/0", f"host-{number}"), b"body")
        store.take(row)
        store.commit()
        assert len(store.queues) == 2
        store.delete(row)
    store.commit()
    assert sum("queues" in each for each in written) == 1 + 2 * 50
    assert [queue.path for queue in store.queues.values()] == ["stays/0"]
    assert store.find("host-7/0") is None
    assert store.queue("host-7/0", "host-7") <= 3  # there are not many numbers
    assert [*store.read(store.find("stays/0"), newest=True)] == [(stays, b"body")]
    store.close()


def test_a_store_that_is_written_at_close_only_keeps_no_marks_in_memory(path):
    pages = fingerprints(30_000)
    with closing(Store(path, LocalFilter())) as store:
        store.commit()
        store.marks.write_blocks_only()
        store.filter.add_many(pages)
        assert not marks_in_memory(store)
    with closing(Store(path, LocalFilter())) as store:
        assert store.clean
        assert all(store.filter.contains_many(pages))
        assert store.filter.items == 30_000


def test_what_is_damaged_on_the_failed_list_does_not_stop_the_search_for_what_leads_there(path):
    filter_ = LocalFilter()
    with closing(Store(path, filter_)) as store:
        for number in range(2):
            for kind, unparsed in ("503", False), (REDIRECTED, True):
                way = (b"%d" % number,)
                failed = FailedPage(kind, "", 1.0, 0, "", unparsed=unparsed, way=way, body=b"")
                store.fail(store.push(store.queue("0", "a"), b""), failed)
        store.commit()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE failed SET way = 'strange' WHERE way LIKE ?", (f"%{b'1'.hex()}%",))
    with closing(Store(path)) as store:
        assert store.failed.led_to() == {b"0"}
        assert len(store.failed.leading_to({b"0", b"1"})) == 1


def test_halves_of_characters_are_written_as_question_marks(path):
    """Else each commit to come fails, as the row that cannot be written is tried again."""
    store = Store(path, LocalFilter())
    bad = FailedPage("E\ud800", "\ud800", 1.0, 1, "", unparsed=False, way=(), body=b"")
    row = store.push(store.queue("0", "a\ud800"), b"")
    store.push(store.queue("0", "a\ud800"), b"left")
    store.meta["queue"] = "\udcff"
    store.commit()
    store.fail(row, bad)
    with pytest.raises(UnicodeEncodeError):
        store.queue("\ud800/0", "a")
    store.close()
    with closing(Store(path)) as store:
        assert [queue.slot for queue in store.queues.values()] == ["a?"]
        assert (store.meta["queue"], store.failed.reasons.failures) == ("?", {"E?": 1})
        assert [each.message for _, each in store.failed.stored()] == ["?"]
