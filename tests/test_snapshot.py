"""The file of a filter at rest: whole, or refused by name and left alone."""

import json
import os
import stat
import tracemalloc
from contextlib import suppress
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.contract import fingerprints
from support.examples import share_of
from support.jobs import IDENTITY, everything_in, open_job, stored_job
from support.processes import run_program

from scrapy_bloom.core.window import filter_of
from scrapy_bloom.errors import StateError
from scrapy_bloom.storage.files import write_whole
from scrapy_bloom.storage.frame import MAGIC
from scrapy_bloom.storage.snapshot import Identity, read_snapshot
from scrapy_bloom.storage.store import put_aside_if_unclean

KNOWN = fingerprints(2500)


@pytest.fixture
def snapshot(tmp_path):
    return stored_job(tmp_path / "job", KNOWN)


def refused(path, identity=IDENTITY):
    """Return the words with which a job is refused, after a look that nothing was touched."""
    before = everything_in(path.parent)
    with pytest.raises(StateError) as error:
        open_job(path.parent, identity)
    assert everything_in(path.parent) == before
    assert str(path) in str(error.value)
    return str(error.value)


def rewrite(path, change):
    """Change the header of a snapshot, with a checksum that is right again."""
    data = path.read_bytes()
    length = int.from_bytes(data[18:22], "big")
    version, header, body = data[16:18], json.loads(data[26 : 26 + length]), data[26 + length :]
    version = change(header) or version
    header = json.dumps(header).encode()
    frame = version + len(header).to_bytes(4, "big")
    path.write_bytes(MAGIC + frame + crc32(frame + header).to_bytes(4, "big") + header + body)


def test_what_was_stored_is_there_again(snapshot):
    job = open_job(snapshot.parent)
    assert all(job.filter.contains_many(KNOWN))
    assert job.restored == len(KNOWN)
    assert job.filter.info().slices == 3
    assert not any(job.filter.contains_many(fingerprints(1000, "other")))


@settings(deadline=None, max_examples=share_of(20))
@given(
    runs=st.lists(st.lists(st.binary(max_size=24), max_size=60), min_size=1, max_size=4),
    capacity=st.integers(1, 100),
)
def test_no_run_of_a_job_forgets_what_an_earlier_one_knew(tmp_path_factory, runs, capacity):
    folder = tmp_path_factory.mktemp("job")
    known = []
    for run in runs:
        job = open_job(folder, capacity=capacity)
        assert all(job.filter.contains_many(known))
        job.filter.add_many(run)
        known += run
        before = job.filter.info()
        job.close()
        again = read_snapshot(folder / "requests.bloom", IDENTITY).state
        assert sum(part.items for part in again.slices) == before.items == len(set(known))


def test_only_touched_blocks_are_stored(tmp_path):
    path = stored_job(tmp_path, fingerprints(3), capacity="1G")
    assert path.stat().st_size < 3 * 8192 + 100_000


def test_it_is_the_owners_alone_and_holds_no_pickle(snapshot):
    assert stat.S_IMODE(snapshot.stat().st_mode) == 0o600
    header = snapshot.read_bytes()[26:]
    assert header.startswith(b'{"written_by": "scrapy-bloom ')


@pytest.mark.parametrize("sixteenth", range(16))
def test_a_cut_file_is_refused(snapshot, sixteenth):
    size = snapshot.stat().st_size
    os.truncate(snapshot, size * sixteenth // 16)
    text = refused(snapshot)
    assert "found" in text
    assert "expected" in text
    assert "left as it is" in text
    if sixteenth == 0:
        assert "an empty file" in text


def test_a_file_with_more_at_its_end_is_refused(snapshot):
    with snapshot.open("ab") as file:
        file.write(b"more")
    assert "4 bytes too many" in refused(snapshot)


def test_a_flipped_byte_anywhere_is_noticed(snapshot):
    """Every byte of frame and header, and 200 bytes spread over the bits."""
    good = snapshot.read_bytes()
    length = int.from_bytes(good[18:22], "big")
    body = range(26 + length, len(good), (len(good) - 26 - length) // 200)
    for position in [*range(26 + length), *body, len(good) - 1]:
        bad = bytearray(good)
        bad[position] ^= 0x41
        snapshot.write_bytes(bad)
        with pytest.raises(StateError, match="found"):
            read_snapshot(snapshot, IDENTITY)
    snapshot.write_bytes(good)
    assert read_snapshot(snapshot, IDENTITY)


def test_a_damaged_file_is_refused_in_clear_words(snapshot):
    data = bytearray(snapshot.read_bytes())
    data[-100] ^= 1
    snapshot.write_bytes(data)
    assert "bits that do not match their checksum" in refused(snapshot)
    data[40] ^= 1
    snapshot.write_bytes(data)
    assert "header that does not match its checksum" in refused(snapshot)


def test_a_newer_version_is_refused_as_newer(snapshot):
    rewrite(snapshot, lambda _: b"\x00\x02")
    text = refused(snapshot)
    assert "found format version 2, expected version 1" in text
    assert "a newer one" in text


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("secret"),
        lambda header: header.update(secret="no hexadecimal"),
        lambda header: header.update(hashes=15),
        lambda header: header.update(block_bits=512),
        lambda header: header.update(slices=[]),
        lambda header: header.update(slices=[{"capacity": 1}]),
        lambda header: header.update(identity={"spider": "books"}),
        lambda header: header.update(secret="ab" * 15),
        lambda header: header.update(secret="ab" * 65),
        lambda header: header.update(hashes=1.5),
        lambda header: header.update(hashes=True),
        lambda header: header.update(digests=1),
        lambda header: header.update(generation="x"),
        lambda header: header.update(generation=None),
        lambda header: header.update(slices=header["slices"] * 30),
        lambda header: header.update(identity={"spider": "books", "fingerprinter": 5}),
        lambda header: header["identity"].update(canonical=[]),
        lambda header: header["slices"][0].update(items=1001),
        lambda header: header["slices"][0].update(items=-1),
        lambda header: header["slices"][0].update(capacity=1e9),
        lambda header: header["slices"][0].update(error_rate=float("nan")),
        lambda header: header["slices"][0].update(error_rate=5e-324, blocks=2**40),
        lambda header: header["slices"][0].update(error_rate=2),
        lambda header: header["slices"][0].update(blocks=0),
        lambda header: header["slices"][0].update(blocks=2**60),
        lambda header: header["slices"][0].update(blocks=-1),
        lambda header: header["slices"][0].update(blocks="many"),
    ],
)
def test_a_forged_header_is_refused_and_asks_for_no_memory(snapshot, change):
    rewrite(snapshot, lambda header: change(header) and None)
    assert "expected" in refused(snapshot)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)
paths = st.sampled_from(
    [
        *[[name] for name in ("identity", "generation", "secret", "hashes", "digests", "slices")],
        *[["identity", name] for name in ("spider", "fingerprinter", "canonical")],
        *[["slices", 0, name] for name in ("capacity", "error_rate", "blocks", "items")],
        ["slices", 0, "since"],
        ["slices", 2],
        *[[name] for name in ("layout", "window", "total", "withdrawn", "ages", "other_shards")],
    ]
)


@settings(deadline=None, max_examples=share_of(300))
@given(path=paths, value=anything)
def test_whatever_a_header_says_it_is_read_or_refused(tmp_path_factory, path, value):
    folder = tmp_path_factory.mktemp("job")
    snapshot = stored_job(folder, fingerprints(200), capacity=50)

    def change(header):
        *outer, last = path
        for name in outer:
            header = header[name]
        header[last] = value

    rewrite(snapshot, change)
    with suppress(StateError):
        filter_of(read_snapshot(snapshot).state, 1000, 1e-6).add_many(fingerprints(500, "more"))


@settings(deadline=None, max_examples=share_of(20))
@given(marks=st.sets(st.binary(max_size=300), max_size=20))
def test_withdrawn_marks_are_kept(tmp_path_factory, marks):
    folder = tmp_path_factory.mktemp("job")
    job = open_job(folder)
    job.filter.add_many(marks)
    assert all(job.filter.forget_many(marks))
    job.close()
    assert open_job(folder).filter.forgotten == marks


@pytest.mark.parametrize("count", [0, 2, 2**40, 1.5, None])
def test_a_wrong_count_of_withdrawn_marks_is_refused(tmp_path, count):
    job = open_job(tmp_path)
    job.filter.forgotten.add(b"one")
    job.close()
    path = tmp_path / "requests.bloom"
    rewrite(path, lambda header: header.update(withdrawn=count) and None)
    assert "expected" in refused(path)


def test_nested_json_is_refused(snapshot):
    header = b"[" * 100_000
    frame = b"\x00\x01" + len(header).to_bytes(4, "big")
    snapshot.write_bytes(MAGIC + frame + crc32(frame + header).to_bytes(4, "big") + header)
    assert "nested too deep" in refused(snapshot)


def test_a_small_file_asks_for_little_memory(snapshot):
    """4 MB of zeros: a bitmap of 32 million blocks of which none is stored."""

    def change(header):
        header["slices"] = [{**header["slices"][0], "blocks": 32_000_000}]

    rewrite(snapshot, change)
    start = snapshot.read_bytes()[: 26 + int.from_bytes(snapshot.read_bytes()[18:22], "big")]
    body = bytes(4_000_000)
    snapshot.write_bytes(start + body + crc32(body).to_bytes(4, "big"))
    tracemalloc.start()
    with pytest.raises(StateError):
        read_snapshot(snapshot, IDENTITY)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_a_job_of_many_rules_reads_its_own_file(tmp_path):
    rules = {f"domain-{i}.example.com": {"drop": ["session", "ref"]} for i in range(20_000)}
    identity = Identity("books", IDENTITY.fingerprinter, {"rules": rules})
    job = open_job(tmp_path, identity)
    job.filter.add_many(KNOWN)
    job.close()
    job = open_job(tmp_path, identity)
    assert (job.restored, job.filled_with) == (len(KNOWN), {"rules": rules})


def test_a_file_of_somebody_else_is_refused(snapshot):
    snapshot.write_bytes(b"GIF89a, say")
    assert "a file that starts with b'GIF89a, say'" in refused(snapshot)


def test_the_filter_of_another_spider_is_refused(snapshot):
    text = refused(snapshot, Identity("films", IDENTITY.fingerprinter))
    assert "found the filter of spider 'books', expected spider 'films'" in text
    assert "another JOBDIR" in text


def test_the_filter_of_another_fingerprinter_is_refused(snapshot):
    text = refused(snapshot, Identity("books", "mine.Fingerprinter"))
    assert "fingerprinter 'scrapy.utils.request.RequestFingerprinter'" in text
    assert "'mine.Fingerprinter'" in text


@pytest.mark.parametrize("name", ["requests.bloom", "requests.bloom.running"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [("folder", "a folder"), ("fifo", "a FIFO"), ("link", "a symbolic link")],
)
def test_what_is_no_file_is_refused_at_once(tmp_path, name, kind, words):
    folder = tmp_path / "job"
    path = folder / name
    folder.mkdir()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        (tmp_path / "elsewhere").write_bytes(b"precious")
        path.symlink_to(tmp_path / "elsewhere")
    text = refused(path)
    assert f"found {words}" in text
    assert "expected a regular file" in text
    assert kind != "link" or (tmp_path / "elsewhere").read_bytes() == b"precious"


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_this_user_may_not_use_is_refused(what, reachable):
    folder = reachable / "job"
    path = stored_job(folder, KNOWN)
    (path if what == "file" else folder).chmod(0o000 if what == "file" else 0o555)
    before = path.lstat().st_mode
    result = run_program("open_as_ordinary_user", folder)
    assert result.stdout.startswith("StateError "), result.stderr
    assert str(folder) in result.stdout
    assert "ermission denied" in result.stdout
    assert path.lstat().st_mode == before


@pytest.fixture
def reachable(tmp_path):
    """Give a folder that an ordinary user can reach too."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("room", [0, 100, 10_000])
def test_a_full_disk_leaves_the_old_snapshot_and_no_part_of_the_new(snapshot, room):
    before = snapshot.read_bytes()
    result = run_program("store_on_a_full_disk", snapshot.parent, room)
    assert result.stdout.startswith("StateError "), result.stderr
    assert "could not be stored (File too large)" in result.stdout
    assert snapshot.read_bytes() == before
    assert not list(snapshot.parent.glob("*.tmp"))
    assert put_aside_if_unclean(snapshot.parent, IDENTITY.spider)
    assert open_job(snapshot.parent).restored == 0


def test_a_file_is_put_in_place_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    write_whole(path, [b"old"])

    def broken():
        yield b"new"
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        write_whole(path, broken())
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]


def test_what_a_killed_writer_left_is_no_hindrance(tmp_path):
    (tmp_path / "file.tmp").write_bytes(b"half")
    write_whole(tmp_path / "file", [b"new"])
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"new")]
