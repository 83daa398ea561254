"""`scrapy bloom`, each verb by each fault: one line that says why, and nothing is changed."""

import itertools
import re
import shlex
import socket
import sqlite3
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import ANY
from zlib import crc32

import pytest
from support.contract import fingerprints
from support.filters import everything, everything_in
from support.frontiers import kept_job
from support.jobs import open_job, stored_job
from support.localredis import LocalRedis
from support.processes import PATIENCE, environment
from support.queues import Worker, entry
from support.waiting import until

from scrapy_bloom import RedisFilter, RedisReader, tools
from scrapy_bloom.commands.output import Output
from scrapy_bloom.redis.sharding import shard_key
from scrapy_bloom.redis.upkeep import retire
from scrapy_bloom.registry import COMMANDS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "commands.md"
NO_COMMANDS = {*COMMANDS, "sets"}  # of Redis
URL = "http://example.com/"
BLOOM = shlex.join([sys.executable, "-m", "scrapy", "bloom"])
keys = (f"faults:{number}" for number in itertools.count())

LOOKING = [
    "info {}",
    "info {} --check",
    f"contains {{}} {URL}",
    "queue {}",
    "copy {} copy.bloom",
    "copy {} copy --spider books",
]
CHANGING = [
    f"add {{}} {URL} --spider books",
    f"forget {{}} {URL}",
    "copy whole.bloom {}",
    "delete {} --yes",
]
MAKING = {"add", "copy whole.bloom"}
"""Verbs that make a target where there is none."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty working directory, but for what is read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "urls.txt").write_text(f"{URL}\n")
    stored_job(tmp_path / "whole", fingerprints(50))
    tools.copy(tmp_path / "whole", tmp_path / "whole.bloom")
    return tmp_path


# What is there is none of ours, or cannot be read


def text_file(place, _):
    (place / "notes.txt").write_text("nothing of ours\n")
    return "notes.txt"


def foreign_job(place, _):
    (place / "theirs").mkdir()
    (place / "theirs" / "requests.bloom").write_text("nothing of ours\n")
    return "theirs"


def empty_file(place, _):
    (place / "empty.bloom").touch()
    return "empty.bloom"


def damaged_file(place, _):
    data = bytearray((place / "whole.bloom").read_bytes())
    data[-100] ^= 1
    (place / "damaged.bloom").write_bytes(data)
    return "damaged.bloom"


def cut_file(place, _):
    (place / "cut.bloom").write_bytes((place / "whole.bloom").read_bytes()[:500])
    return "cut.bloom"


def newer_file(place, _):
    data = (place / "whole.bloom").read_bytes()
    length = struct.unpack_from(">I", data, 18)[0]
    frame = struct.pack(">HI", 9, length)
    crc = struct.pack(">I", crc32(frame + data[26 : 26 + length]))
    (place / "newer.bloom").write_bytes(data[:16] + frame + crc + data[26:])
    return "newer.bloom"


def damaged_requests(place, _):
    path = kept(place) / "requests.sqlite"
    data = bytearray(path.read_bytes())
    data[:16] = b"no database here"
    path.write_bytes(data)
    return "kept"


def damaged_rows(place, _):
    database = sqlite3.connect(kept(place) / "requests.sqlite")
    with database:
        database.execute("UPDATE meta SET value = value || '0'")
    database.close()
    return "kept"


def newer_requests(place, _):
    database = sqlite3.connect(kept(place) / "requests.sqlite")
    database.execute("PRAGMA user_version = 99")
    database.close()
    return "kept"


def kept(place):
    return kept_job(
        place / "kept", stored=fingerprints(9), journal=fingerprints(9, "b"), urls=[URL]
    )


def text_key(_, server):
    return of_key(server, lambda client, key: client.set(key, "x"))


def foreign_hash(_, server):
    return of_key(server, lambda client, key: client.hset(key, "a", 1))


def sorted_set(_, server):
    return of_key(server, lambda client, key: client.zadd(key, {"a": 1}))


def damaged_header(_, server):
    return of_filter(server, "capacity", 7)


def damaged_slices(_, server):
    return of_filter(server, "slices", "0:0:0")


def newer_filter(_, server):
    return of_filter(server, "format", 9)


def newer_layout(_, server):
    return of_filter(server, "layout", "later")


def of_key(server, write):
    key = next(keys)
    write(server.client(), key)
    return f"{server.url}#{key}"


def of_filter(server, field, value):
    key = next(keys)
    with RedisFilter.from_url(server.url, key=key) as seen:
        seen.add_many(fingerprints(9))
    server.client().hset(key, field, value)
    return f"{server.url}#{key}"


LOCAL = [text_file, foreign_job, empty_file, damaged_file, cut_file, newer_file,
         damaged_requests, damaged_rows, newer_requests]  # fmt: skip
SHARED = [text_key, foreign_hash, sorted_set, damaged_header, damaged_slices, newer_filter,
          newer_layout]  # fmt: skip


@pytest.mark.parametrize("fault", [*LOCAL, *SHARED], ids=lambda fault: fault.__name__)
def test_what_cannot_be_read_is_refused_by_every_verb(bloom, place, server, fault):
    target = fault(place, server)
    before = without_locks(place), everything_in(server)
    for line in (*LOOKING, *CHANGING):
        code, lines, errors = bloom(line.format(target))
        if line.endswith("--check"):  # whose answer it is
            assert code in (1, 2), line
            assert (code == 1) == any(found.startswith("bad\t") for found in lines)
        else:
            assert (code, lines, len(errors)) == (2, [], 1), (line, lines, errors)
            assert "found" in errors[0] or "damaged" in errors[0], (line, errors)
            name = target.partition("#")[2] or target
            assert name in errors[0], (line, errors)
        assert (without_locks(place), everything_in(server)) == before, line


def without_locks(place):
    """Return all that files have. Whoever locks a job directory leaves its lock file."""
    return {
        path: found
        for path, (_, found) in everything(place).items()
        if path.name != "requests.bloom.lock"
    }


# Nothing is there


@pytest.mark.parametrize("kind", ["nowhere", "nowhere.bloom", "redis"])
def test_what_is_not_there_is_told_by_every_verb(bloom, place, server, kind):
    target = f"{server.url}#{next(keys)}" if kind == "redis" else kind
    before = everything(place), everything_in(server)
    for line in (*LOOKING, *CHANGING):
        if any(line.startswith(verb) for verb in MAKING):
            continue
        code, lines, errors = bloom(line.format(target))
        assert (code, lines, len(errors)) == (2, [], 1), (line, lines, errors)
        assert "found no" in errors[0], (line, errors)
        assert (everything(place), everything_in(server)) == before, line


def test_what_is_not_there_is_made_where_that_is_meant(bloom, place, server):
    for number, line in enumerate(line for line in CHANGING if line.startswith((*MAKING,))):
        for target in (f"job{number}", f"{number}.bloom", f"{server.url}#{next(keys)}"):
            assert bloom(line.format(target))[0] == 0, (line, target)
            assert bloom(f"info {target}")[0] == 0
            assert bloom(f"info {target} --check")[0] == 0
    assert not [*place.rglob("*.tmp")]


# Somebody uses it


def test_a_job_in_use_is_looked_at_and_refused_by_all_that_change_it(bloom, place):
    crawl = open_job(place / "job")
    crawl.filter.add_many(fingerprints(9, "b"))
    stored = everything(place)
    for line in LOOKING:  # there is no filter yet
        assert bloom(line.format("job"))[0] == 2
        assert everything(place) == stored, line
    crawl.close()
    crawl = open_job(place / "job")
    before = everything(place)
    for line in LOOKING[:3]:
        assert bloom(line.format("job"))[0] in (0, 1), line
        assert everything(place) == before, line
    for line in CHANGING:
        code, lines, errors = bloom(line.format("job"))
        assert (code, lines, len(errors)) == (2, [], 1), (line, lines, errors)
        assert "using this job directory" in errors[0] or "expected none" in errors[0], line
        assert everything(place) == before, line
    crawl.close()


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("layout", ["bitmap", "sets"])
def test_a_filter_under_workers_is_not_replaced_or_deleted(bloom, server, layout):
    key = next(keys)
    target = f"{server.url}#{key}"
    with RedisFilter.from_url(server.url, key=key, layout=layout) as seen:
        seen.add_many(fingerprints(50))
        for line in (*LOOKING[:3], LOOKING[4]):
            assert bloom(line.format(target))[0] in (0, 1), line
        assert bloom(f"delete {target} --yes")[2][0].endswith("as stopped after some seconds.")
        code, _, errors = bloom(f"copy copy.bloom {target}")
        assert code == 2
        assert "found a hash, expected none" in errors[0]
        assert bloom(f"add {target} {URL}")[:2] == (
            0,
            ["1 pages marked, 0 were marked before"],
        )
        assert seen.add_many(fingerprints(50)) == [True] * 50
        assert seen.counters.losses == 0


# Another layout


def test_filters_that_do_not_fit_are_told_why(bloom, place, server):
    with RedisFilter.from_url(server.url, key="sets", layout="sets") as seen:
        seen.add_many(fingerprints(9))
    key = next(keys)
    with RedisFilter.from_url(server.url, key=key, shards=2) as seen:
        seen.add_many(fingerprints(9))
    for line, told in (
        (f"copy {server.url}#{key} new --spider a", "shards cannot be kept in a job directory"),
        (f"copy {server.url}#sets new --spider a", "the fingerprint cannot be recovered"),
        (f"copy {server.url}#{key} new.bloom --key other", ""),
    ):
        code, _, errors = bloom(line)
        assert told in "".join(errors)
        assert code == (2 if told else 0)
        assert not (place / "new").exists()


# Whoever asks may not, or there is no room


@pytest.mark.parametrize("layout", ["bitmap", "sets"])
def test_a_server_without_memory_keeps_what_it_has(bloom, place, layout):
    """And nothing is left of what was on its way."""
    with LocalRedis() as server:
        client = server.client()
        with RedisFilter.from_url(server.url, key="a", layout=layout, capacity=100_000) as seen:
            seen.add_many(fingerprints(20_000))
        assert bloom(f"copy {server.url}#a a.bloom")[0] == 0
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 100_000)
        before = everything_in(server), everything(place)
        code, lines, errors = bloom(f"copy a.bloom {server.url}#b")
        assert (code, lines, len(errors)) == (2, [], 1)
        assert "memory" in errors[0]
        assert (everything_in(server), everything(place)) == before
        client.config_set("maxmemory", 0)
        assert bloom(f"copy a.bloom {server.url}#b")[0] == 0


def test_whoever_may_only_read_looks_and_changes_nothing(bloom, place, server):
    """With no other rights than those that the page of the commands names."""
    key = next(keys)
    for layout in ("bitmap", "sets"):
        with RedisFilter.from_url(server.url, key=f"{key}{layout}", layout=layout) as seen:
            seen.add_many(fingerprints(50))
    section = PAGE.read_text().partition("## Rights in Redis")[2].partition("## ")[0]
    look, change, _ = section.strip().split("\n\n")
    allow(server.client(), "reader", look)
    allow(server.client(), "mover", look + change)
    url = server.url.replace("redis://", "redis://reader:pass@")
    before = everything_in(server)
    for layout in ("bitmap", "sets"):
        target = f"{url}#{key}{layout}"
        for number, line in enumerate(("info {}", "info {} --check", f"contains {{}} {URL}")):
            code, _, errors = bloom(line.format(target))
            assert (code, errors) == (number == 2, []), line  # only the page is not there
        assert bloom(f"copy {target} {layout}.bloom")[0] == 0
        for line in (
            f"add {target} {URL}",
            f"delete {target} --yes",
            f"copy {target} {url}#{key}new",
            f"forget {target} {URL}",
        ):
            code, lines, errors = bloom(line)
            assert (code, lines, len(errors)) == (2, [], 1), (line, lines, errors)
            assert "pass@" not in errors[0]
            assert everything_in(server) == before, line
    assert not (place / "new").exists()
    url = url.replace("reader", "mover")
    for layout in ("bitmap", "sets"):
        target = f"{url}#{key}{layout}"
        assert bloom(f"copy {target} {target}new") == (0, ANY, [])
        assert bloom(f"copy {layout}.bloom {target}newer") == (0, ANY, [])


def allow(client, user, text):
    """Let a user run the commands that a text names, and what every connection begins with."""
    commands = re.findall(r"`([a-z_|]+)`", text)
    client.execute_command(
        *("ACL", "SETUSER", user, "reset", "on", ">pass", "~*"),
        *(f"+{command}" for command in (*commands, "ping", "hello", "client", "select")
          if command not in NO_COMMANDS),
    )  # fmt: skip


def test_a_replica_is_looked_at(bloom, place):
    """Which would refuse a single command that writes."""
    with LocalRedis() as primary, LocalRedis() as replica:
        for layout in ("bitmap", "sets"):
            with RedisFilter.from_url(primary.url, key=layout, layout=layout) as seen:
                seen.add_many(fingerprints(50))
        replica.client().replicaof(primary.HOST, primary.port)
        until(lambda: has_all(replica, primary))
        before = everything_in(replica)
        for layout in ("bitmap", "sets"):
            target = f"{replica.url}#{layout}"
            for line in ("info {}", "info {} --check", f"copy {{}} {layout}.bloom"):
                code, _, errors = bloom(line.format(target))
                assert (code, errors) == (0, []), line
            assert bloom(f"contains {target} {URL}")[0] == 1
            for line in (f"add {target} {URL}", f"delete {target} --yes"):
                code, _, errors = bloom(line)
                assert code == 2, line
                assert "replica" in errors[0], errors
        assert everything_in(replica) == before
        assert (place / "sets.bloom").exists()


def has_all(replica, primary):
    there, here = (server.client().info("replication") for server in (primary, replica))
    up = here["master_link_status"] == "up"
    return up and here["slave_repl_offset"] >= there["master_repl_offset"]


# Ctrl-C, and a server that goes away: nothing is half done


@pytest.mark.parametrize("layout", ["bitmap", "sets"])
@pytest.mark.parametrize("after", [1, 2, 4])
def test_an_interrupted_move_changes_nothing(bloom, place, server, monkeypatch, layout, after):
    with server.client() as client:
        client.flushall()  # all that is there is read, again and again
    key = next(keys)
    target = f"{server.url}#{key}"
    with RedisFilter.from_url(server.url, key=key, layout=layout, capacity=900_000) as seen:
        seen.add_many(fingerprints(3_000))
    assert bloom(f"copy {target} one.bloom")[0] == 0
    steps = itertools.count(1)

    def interrupted(*_, **__):
        @contextmanager
        def progress(*_, **__):
            def told(_):
                if next(steps) == after:
                    raise KeyboardInterrupt

            yield told

        return progress()

    for line in (
        f"copy one.bloom {target}:copy",
        f"copy {target} {target}:copy",
        f"copy {target} two.bloom",
    ):
        before = everything(place), everything_in(server)
        steps = itertools.count(1)
        with monkeypatch.context() as patched:
            patched.setattr(Output, "progress", interrupted)
            code, lines, errors = bloom(line)
        if next(steps) <= after:
            assert code == 0, line  # it was done before
            bloom(f"delete {target}:copy --yes")
            (place / "two.bloom").unlink(missing_ok=True)
            continue
        assert (code, lines, errors) == (
            130, [], [f"scrapy bloom {line.split()[0]}: interrupted"],
        )  # fmt: skip
        assert (everything(place), everything_in(server)) == before, line


@pytest.mark.parametrize("layout", ["bitmap", "sets"])
def test_an_interrupted_delete_is_gone_on_with(bloom, server, monkeypatch, layout):
    key = next(keys)
    target = f"{server.url}#{key}"
    with RedisFilter.from_url(server.url, key=key, layout=layout, capacity=9_000_000) as seen:
        seen.add_many(fingerprints(6_000))

    def interrupted(*_, **__):
        @contextmanager
        def progress(*_, **__):
            def told(_):
                raise KeyboardInterrupt

            yield told

        return progress()

    with monkeypatch.context() as patched:
        patched.setattr(Output, "progress", interrupted)
        code, _, errors = bloom(f"delete {target} --yes")
    assert (code, errors) == (130, ["scrapy bloom delete: interrupted"])
    assert bloom(f"info {target}")[0] == 2  # there is no filter any more
    assert len(everything_in(server)) > 1
    assert bloom(f"delete {target} --leftovers")[0] == 0
    left = [name for name in everything_in(server) if name.startswith(key.encode())]
    assert left == []


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("layout", ["bitmap", "sets"])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_killed_delete_leaves_no_requests_without_a_filter(bloom, server, layout, shards):
    """A crawl that begins anew must not take them up. What is left, is found and deleted."""
    key = next(keys)
    target = f"{server.url}#{key}"
    with Worker(server.url, key, layout=layout, shards=shards) as worker:
        worker.queue.offer([entry(number) for number in range(20)])
        worker.queue.take(5, [])
    with RedisReader.from_url(server.url, key=key) as reader:
        first = reader.parts()[0]
        queues = {queue: queue.look() for queue in reader.queues()}
        assert all(queues.values())
        with pytest.raises(KeyboardInterrupt):
            retire(first, interrupt, next(iter(queues)).keys)
        assert [queue.look() for queue in queues] == [None, *list(queues.values())[1:]]
    assert bloom(f"info {target}")[0] == 2
    nothing_left = shards == 1  # it is so small
    assert bloom(f"delete {target} --yes")[0] == (2 if nothing_left else 0)
    assert not [name for name in everything_in(server) if name.startswith(key.encode())]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("how", ["--yes", "--leftovers"])
@pytest.mark.parametrize("shards", [1, 3])
def test_requests_whose_filter_is_gone_are_found_and_deleted(bloom, server, how, shards):
    key = next(keys)
    target = f"{server.url}#{key}"
    with Worker(server.url, key, shards=shards) as worker:
        worker.queue.offer([entry(number) for number in range(20)])
    server.client().delete(*(shard_key(key, number) for number in range(shards)))
    code, lines, _ = bloom(f"info {target} --check")
    assert code == 1
    assert "delete --leftovers" in lines[-1]
    code, _, errors = bloom(f"info {target}")
    assert code == 2
    assert "only 20 requests that wait there" in errors[0]
    code, lines, errors = bloom(f"queue {target}")
    assert code == 0
    assert "waiting\t20" in lines
    assert "the filter beside these requests has gone" in errors[0]
    before = everything_in(server)
    code, _, errors = bloom(f"delete {target}")
    assert code == 2
    assert "with all requests that wait there? There is nobody to ask here" in errors[0]
    assert everything_in(server) == before
    assert bloom(f"delete {target} {how}")[0] == 0
    assert not [name for name in everything_in(server) if name.startswith(key.encode())]
    assert bloom(f"queue {target}")[0] == 2


def interrupt(_):
    raise KeyboardInterrupt


# Pipes


@pytest.mark.scrapy
def test_a_filter_goes_through_a_pipe(place):
    """As it does to another machine."""
    known = [one.hex() for one in fingerprints(50)]
    line = f"{BLOOM} copy whole - | {BLOOM} copy - new"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("new: 50 items in")
    assert "standard output: 50 items in" in done.stderr
    assert all(tools.contains(place / "new", fingerprints=map(bytes.fromhex, known)))
    tools.copy(place / "new", place / "new.bloom")
    assert (place / "new.bloom").read_bytes() == (place / "whole.bloom").read_bytes()


def test_requests_seen_is_read_from_a_pipe(bloom, place):
    seen = b"".join(b"\0\x14" + one for one in fingerprints(99))
    told = ["99 pages marked, 0 were marked before"]
    assert bloom("add seen - --spider books", stdin=seen) == (0, told, [])
    assert all(tools.contains(place / "seen", fingerprints=fingerprints(99)))


@pytest.mark.parametrize("form", ["binary", "text", "both"])
def test_scrapys_own_marks_are_taken(bloom, place, form):
    known = fingerprints(3000)
    old = "".join(f"{one.hex()}\n" for one in known[:1500]).encode()
    new = b"".join(b"\0\x14" + one for one in known[1500:])
    odd = b"\0\x03abc" + b"abcdef\n"
    path = place / "requests.seen"
    path.write_bytes({"binary": new + odd, "text": old, "both": old + odd + new}[form])
    expected = {"binary": known[1500:], "text": known[:1500], "both": known}[form]
    count = len(expected) + 2 * (form != "text")
    told = [f"{count:,} pages marked, 0 were marked before"]
    assert bloom("add seen --file requests.seen --spider books") == (0, told, [])
    assert all(tools.contains(place / "seen", fingerprints=expected))


def test_lines_are_urls_or_fingerprints(bloom, place):
    known = [one.hex() for one in fingerprints(9)]
    (place / "lines").write_text("\n".join([URL, "", *known, "example.com", "http://[/"]))
    code, lines, notes = bloom("add whole --file lines")
    assert (code, lines) == (1, ["1 pages marked, 9 were marked before"])
    assert [note.split(":")[0] for note in notes[:2]] == ["line 12", "line 13"]
    assert "Missing scheme" in notes[0]
    assert notes[2] == "2 of 13 lines were bad and left out"
    assert bloom(f"contains whole {URL}")[0] == 0


def test_the_marks_of_a_killed_crawl_are_warned_of(bloom, place):
    folder = place / "theirs"
    (folder / "requests.queue").mkdir(parents=True)
    (folder / "requests.queue" / "0").write_bytes(b"x")
    (folder / "requests.seen").write_bytes(b"\0\x14" + fingerprints(1)[0])
    code, _, (warning,) = bloom("add whole --file theirs/requests.seen")
    assert code == 0
    assert "killed" in warning


def scrapys_marks(folder, *, waiting):
    """Leave what a cleanly stopped crawl of Scrapy's own filter and scheduler leaves."""
    (folder / "requests.queue").mkdir(parents=True)
    (folder / "requests.queue" / "active.json").write_text("[0]" if waiting else "[]")
    (folder / "requests.seen").write_bytes(b"\0\x14" + fingerprints(1)[0])


@pytest.mark.parametrize("target", ["whole", "theirs", "new"])
def test_marks_are_not_added_without_the_requests_that_wait_beside_them(bloom, place, target):
    scrapys_marks(place / "theirs", waiting=True)
    before = without_locks(place)
    code, _, (*_, error) = bloom(f"add {target} --file theirs/requests.seen --spider books")
    assert code == 2
    assert "requests wait in theirs/requests.queue" in error
    assert without_locks(place) == before


@pytest.mark.parametrize("source", ["theirs/requests.seen", "-", "set"])
def test_marks_are_not_added_where_requests_wait(bloom, place, server, source):
    """All of their pages would count as seen."""
    kept(place)
    scrapys_marks(place / "theirs", waiting=False)
    shared = next(keys)
    with Worker(server.url, shared) as worker:
        worker.queue.offer([entry(1)])
    server.client().sadd(f"{shared}:set", fingerprints(1)[0].hex())
    name = f"{server.url}#{shared}:set --fingerprint" if source == "set" else source
    stdin = (place / "theirs" / "requests.seen").read_bytes() if source == "-" else b""
    before = without_locks(place)
    for target in ("kept", f"{server.url}#{shared}"):
        code, _, (*_, error) = bloom(f"add {target} --file {name}", stdin=stdin)
        assert code == 2
        assert "requests wait in " in error
        assert shared in error or "kept" in error
        assert without_locks(place) == before
    assert tools.info(f"{server.url}#{shared}").filter.items == 1


def test_a_set_of_scrapy_redis_is_not_added_without_its_queue(bloom, place, server):
    key = next(keys)
    server.client().sadd(f"{key}:dupefilter", fingerprints(1)[0].hex())
    server.client().lpush(f"{key}:requests", b"request")
    line = f"add new --spider books --fingerprint --file {server.url}#{key}:dupefilter"
    code, _, (*_, error) = bloom(line)
    assert code == 2
    assert f"requests wait in key {key}:requests" in error
    assert not (place / "new").exists()


def test_a_set_in_redis_is_refused_unless_it_is_wanted(bloom, place, server):
    """scrapy-redis makes the fingerprints in its set in a way of its own."""
    key, known = next(keys), fingerprints(3000)
    server.client().sadd(key, *(one.hex() for one in known))
    line = f"add new --spider books --file {server.url}#{key}"
    code, _, (error,) = bloom(line)
    assert code == 2
    assert "in a way of its own" in error
    assert not (place / "new").exists()
    told = ["3,000 pages marked, 0 were marked before"]
    assert bloom(f"{line} --fingerprint") == (0, told, [])
    assert all(tools.contains(place / "new", fingerprints=known))
    code, _, (error,) = bloom(f"{line}:other --fingerprint")
    assert code == 2
    assert "found none, expected a set" in error


@pytest.mark.usefixtures("place")
def test_canon_reads_urls_from_a_pipe(bloom):
    code, lines, _ = bloom("canon - http://example.com/b", stdin=b"http://example.com:80/b#a\n\n")
    assert code == 0
    assert lines[-1] == (
        "http://example.com:80/b#a and http://example.com/b: one page, because of default_port"
    )


# Whoever reads a message must not lose a crawl by it


def test_a_file_of_somebody_else_is_no_reason_to_delete_a_job(bloom, place):
    kept(place)
    for name in ("kept/requests.sqlite", "urls.txt"):
        for line in ("info {}", "copy whole {}", "delete {} --yes"):
            code, _, errors = bloom(line.format(name))
            assert (code, len(errors)) == (2, 1), line
            assert "delete the whole" not in errors[0], line
            assert "Give the job directory" in errors[0], line


# What is mistyped


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"contains whole {URL} -", "not both"),
        (f"contains whole {URL} --file urls.txt", "not both"),
        ("copy whole nodir/whole.bloom", "nodir: found no such folder"),
        ("add whole --file urls.txt --strict --fingerprint", "expected hexadecimal digits."),
    ],
)
def test_what_is_mistyped_is_told(bloom, place, line, told):
    before = without_locks(place)
    code, lines, errors = bloom(line)
    assert (code, lines, len(errors)) == (2, [], 1)
    assert told in errors[0]
    assert without_locks(place) == before


@pytest.mark.usefixtures("place")
def test_a_fingerprint_of_another_length_is_a_bad_line(bloom):
    code, lines, notes = bloom("contains whole --fingerprint --file -", stdin=b"abcd\nxyz\n")
    assert (code, lines) == (1, [])
    assert "expected 40 hexadecimal digits, not 4" in notes[0]
    assert "expected hexadecimal digits" in notes[1]


def test_without_a_target_pages_are_added_to_that_of_the_project(bloom, place):
    line = "add --file urls.txt --spider books"
    assert bloom(line, JOBDIR=str(place / "job"))[0] == 0
    assert bloom(f"contains job {URL}")[0] == 0
    code, _, errors = bloom(line)
    assert (code, len(errors)) == (2, 1)


def test_a_server_that_hangs_names_the_setting_that_waits_longer(bloom, monkeypatch):
    monkeypatch.setattr("scrapy_bloom.tools.redis_target.TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        code, _, [said] = bloom(f"info {target} --key books", BLOOM_REDIS_TIMEOUT="0.3")
    assert code == 2
    assert said.endswith("did not answer in time. If it is far or busy, raise BLOOM_REDIS_TIMEOUT.")
