"""`scrapy bloom`, each verb by each fault: one line that says why, and nothing is changed."""

import itertools
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from unittest.mock import ANY

import pytest
import redis
from redis.connection import Connection
from support.contract import fingerprints
from support.filters import everything, everything_in
from support.jobs import kept_job, open_job, stored_job
from support.localredis import LocalRedis
from support.processes import environment, run_line, run_program
from support.waiting import PATIENCE, until

from scrapy_bloom import RedisFilter
from scrapy_bloom.commands import NAMES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
NO_COMMANDS = {*NAMES, "sets", "bitmap"}  # of Redis
URL = "http://example.com/"
BLOOM = (sys.executable, "-m", "scrapy", "bloom")
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
MOVES = ("GET", "SET")  # what a copy does in Redis
MAKING = ("add", "copy whole.bloom")
"""Verbs that make a target where there is none."""


@pytest.fixture
def place(tmp_path, monkeypatch, bloom):
    """An empty working directory, but for what is read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "urls.txt").write_text(f"{URL}\n")
    stored_job(tmp_path / "whole", fingerprints(50))
    assert bloom("copy whole whole.bloom")[0] == 0
    return tmp_path


def seen(bloom, target, known):
    """Return what `contains` says of fingerprints."""
    lines = "\n".join(one.hex() for one in known).encode()
    return [line.startswith("seen") for line in bloom(f"contains {target} -", stdin=lines)[1]]


def contents(place):
    """Return all that files have. Whoever locks a job directory leaves its lock file."""
    return {
        path: found for path, (_, found) in everything(place).items() if path.name != "bloom.lock"
    }


# What is there is none of ours, or cannot be read


def text_file(place, _):
    (place / "notes.txt").write_text("nothing of ours\n")
    return "notes.txt"


def foreign_job(place, _):
    (place / "theirs").mkdir()
    (place / "theirs" / "bloom.sqlite").write_text("nothing of ours\n")
    return "theirs"


def foreign_database(place, _):
    with sqlite3.connect(place / "theirs.bloom") as database:
        database.execute("CREATE TABLE a (b)")
    database.close()
    return "theirs.bloom"


def empty_file(place, _):
    (place / "empty.bloom").touch()
    return "empty.bloom"


def cut_file(place, _):
    (place / "cut.bloom").write_bytes((place / "whole.bloom").read_bytes()[:9000])
    return "cut.bloom"


def damaged_rows(place, _):
    return hurt(place, "UPDATE meta SET value = value || '0' WHERE key = 'capacity'")


def newer_requests(place, _):
    return hurt(place, "PRAGMA user_version = 99")


def hurt(place, statement):
    with sqlite3.connect(kept(place) / "bloom.sqlite") as database:
        database.execute(statement)
    database.close()
    return "kept"


def kept(place):
    return kept_job(place / "kept", known=fingerprints(9), urls=[URL])


def text_key(_, server):
    return of_key(server, lambda client, key: client.set(key, "x"))


def foreign_hash(_, server):
    return of_key(server, lambda client, key: client.hset(key, "a", 1))


def damaged_plan(_, server):
    return of_filter(server, "plan", "{}")


def damaged_slices(_, server):
    return of_filter(server, "slices", "0:0:0")


def newer_filter(_, server):
    return of_filter(server, "format", 9)


def of_key(server, write):
    key = next(keys)
    write(server.client(), key)
    return f"{server.url}#{key}"


def of_filter(server, field, value):
    key = next(keys)
    with RedisFilter.from_url(server.url, key=key) as filter_:
        filter_.add_many(fingerprints(9))
    server.client().hset(key, field, value)
    return f"{server.url}#{key}"


LOCAL = [text_file, foreign_job, foreign_database, empty_file, cut_file, damaged_rows,
         newer_requests]  # fmt: skip
SHARED = [text_key, foreign_hash, damaged_plan, damaged_slices, newer_filter]


@pytest.mark.parametrize("fault", [*LOCAL, *SHARED], ids=lambda fault: fault.__name__)
def test_what_cannot_be_read_is_refused_by_every_verb(bloom, place, server, fault):
    target = fault(place, server)
    before = contents(place), everything_in(server)
    for line in (*LOOKING, *CHANGING):
        code, lines, errors = bloom(line.format(target))
        if line.endswith("--check"):  # whose answer it is
            assert code in (1, 2), line
            assert (code == 1) == any(found.startswith("bad\t") for found in lines)
        else:
            assert (code, lines, len(errors)) == (2, [], 1), (line, lines, errors)
            assert "found" in errors[0], (line, errors)
            assert (target.partition("#")[2] or target) in errors[0], (line, errors)
            assert "delete the whole" not in errors[0], line
        assert (contents(place), everything_in(server)) == before, line


def test_damage_that_a_disk_does_is_found(bloom, place):
    """And each other request is read."""
    hurt(place, "UPDATE requests SET body = zeroblob(40)")
    code, lines, _ = bloom("info kept --check")
    assert code == 1
    assert "1 of 1 requests do not match their checksums" in "".join(lines)
    code, lines, _ = bloom("queue kept --failed")
    assert (code, len(lines)) == (1, 1)
    path = place / "whole" / "bloom.sqlite"
    data = bytearray(path.read_bytes())
    data[-8192:] = bytes(8192)
    path.write_bytes(data)
    assert bloom("info whole --check")[0] == 1


def test_lost_bits_are_found(bloom, place, server):
    with sqlite3.connect(stored_job(place / "large", fingerprints(30_000))) as database:
        database.execute("DELETE FROM blocks")
    database.close()
    code, lines, _ = bloom("info large --check")
    assert code == 1
    assert "Marks are missing" in "".join(lines)
    for layout in ("bitmap", "sets"):
        key = next(keys)
        with RedisFilter.from_url(server.url, key=key, layout=layout) as filter_:
            filter_.add_many(fingerprints(5000))
        assert bloom(f"info {server.url}#{key} --check")[0] == 0
        for name in server.client().scan_iter(f"{key}:*"):
            server.client().delete(name)
        code, lines, _ = bloom(f"info {server.url}#{key} --check")
        assert code == 1
        assert "The server has lost them" in "".join(lines)


# Nothing is there


@pytest.mark.parametrize("kind", ["nowhere", "nowhere.bloom", "redis"])
def test_what_is_not_there_is_told_by_every_verb(bloom, place, server, kind):
    target = f"{server.url}#{next(keys)}" if kind == "redis" else kind
    before = everything(place), everything_in(server)
    for line in (*LOOKING, *CHANGING):
        if not line.startswith(MAKING):
            code, lines, errors = bloom(line.format(target))
            assert (code, lines, len(errors)) == (2, [], 1), (line, lines, errors)
            assert "found no" in errors[0], (line, errors)
        assert (everything(place), everything_in(server)) == before, line


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("shards", [1, 3])
def test_what_a_filter_that_is_gone_has_left_is_found_and_deleted(bloom, server, shards):
    key = next(keys)
    target = f"{server.url}#{key}"
    with RedisFilter.from_url(server.url, key=key, shards=shards) as filter_:
        filter_.add_many(fingerprints(90))
    server.client().zadd(f"{key}:{{{key}}}:queue", {"a": 1})
    server.client().set(f"{key}:other", "not ours")
    server.client().delete(key)
    assert bloom(f"info {target} --check")[0] == 1
    code, _, (error,) = bloom(f"info {target}")
    assert code == 2
    assert "with 1 requests that wait" in error
    before = everything_in(server)
    code, _, (error,) = bloom(f"delete {target}")
    assert code == 2
    assert "Delete all that is there? There is nobody to ask here" in error
    assert everything_in(server) == before
    assert bloom(f"delete {target} --yes")[0] == 0
    left = [name for name in everything_in(server) if name.startswith(key.encode())]
    assert left == [f"{key}:other".encode()]


@pytest.mark.usefixtures("place")
def test_what_an_earlier_filter_has_left_is_deleted_with_the_one_that_is_there(bloom, server):
    key = next(keys)
    with RedisFilter.from_url(server.url, key=key) as filter_:
        filter_.add_many(fingerprints(90))
    server.client().set(f"{key}:{{{key}}}:0123456789abcdef.0.0", "x")
    server.client().set(f"{key}:other", "not ours")
    assert bloom(f"delete {server.url}#{key} --yes")[0] == 0
    left = [name.decode() for name in everything_in(server) if name.startswith(key.encode())]
    assert sorted(left) == [key, f"{key}:other"]  # the first one is the note


@pytest.mark.usefixtures("place")
def test_a_filter_whose_key_is_named_like_a_shard_is_not_deleted_with_another(bloom, server):
    key = next(keys)
    for number in (1, 2):
        with RedisFilter.from_url(server.url, key=f"{key}:{number}") as filter_:
            filter_.add_many(fingerprints(90))
    server.client().set(f"{key}:3", "not ours")
    before = everything_in(server)
    assert bloom(f"delete {server.url}#{key} --yes")[0] == 2
    with RedisFilter.from_url(server.url, key=key) as filter_:
        filter_.add_many(fingerprints(90))
    assert bloom(f"delete {server.url}#{key} --yes")[0] == 0
    left = everything_in(server)
    assert left.pop(key.encode())[b"program"] == b"scrapy-bloom"  # the note
    assert left == before


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_delete_that_was_killed_is_made_again(bloom, server, monkeypatch, shards, after):
    key = next(keys)
    target = f"{server.url}#{key}"
    with RedisFilter.from_url(server.url, key=key, shards=shards, capacity=4_000_000) as filter_:
        filter_.add_many(fingerprints(90))
    with monkeypatch.context() as patched:
        during(patched, ("EVALSHA", "UNLINK"), after, interrupt)
        code, lines, errors = bloom(f"delete {target} --yes")
    if code == 0:  # so many calls are not made
        assert shards == 1
        return
    assert (code, lines, errors) == (130, [], ["scrapy bloom delete: interrupted"])
    assert bloom(f"delete {target} --yes")[0] in (0, 2)  # 2 if only the notes were left
    left = [name for name in everything_in(server) if name.startswith(key.encode())]
    assert all(server.client().ttl(name) > 0 for name in left)  # notes


@pytest.mark.usefixtures("place", "short_leases")
def test_delete_waits_for_the_lease_of_a_killed_worker(bloom, server):
    key = next(keys)
    target = f"{server.url}#{key}"
    line = (
        "import os, sys; from support import pace; from scrapy_bloom import RedisFilter;"
        "pace.follow(); RedisFilter.from_url(sys.argv[1], key=sys.argv[2]).add(b'a'); os._exit(9)"
    )
    assert run_line(line, server.url, key).returncode == 9
    code, (said,), (note,) = bloom(f"delete {target} --yes")
    assert code == 0
    assert said.endswith(f"key {key}: deleted")
    assert "has a lease for" in note
    assert bloom(f"info {target}")[0] == 2


# Whoever asks may not, or there is no room, or the other side goes away


@pytest.mark.parametrize(
    "line", ["add whole -", "copy large x.bloom", "copy large other", "add new - --spider books"]
)
def test_a_full_disk_leaves_what_was_there(bloom, place, line):
    stored_job(place / "large", fingerprints(20_000))
    before = contents(place)
    lines = "\n".join(one.hex() for one in fingerprints(20_000, "b"))
    done = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; ulimit -f 80; exec {' '.join(BLOOM)} {line}"],
        cwd=place,
        env=environment(),
        input=lines,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    left = {path: data for path, data in contents(place).items() if "-" not in path.name}
    assert left == before  # beside a file there may be a log without a commit
    assert seen(bloom, "whole", [*fingerprints(50), *fingerprints(50, "b")]) == (
        [True] * 50 + [False] * 50
    )


@pytest.mark.skipif(os.name == "nt", reason="rights are others there")
def test_without_rights_nothing_is_done():
    told = run_program("commands_without_rights")
    assert told.returncode == 0, told.stdout + told.stderr


def test_a_server_without_memory_keeps_what_it_has(bloom, place):
    """And nothing is left of what was on its way."""
    with LocalRedis() as server:
        client = server.client()
        with RedisFilter.from_url(server.url, key="a", capacity=100_000) as filter_:
            filter_.add_many(fingerprints(20_000))
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 100_000)
        before = everything_in(server), everything(place)
        code, lines, errors = bloom(f"copy {server.url}#a {server.url}#b")
        assert (code, lines, len(errors)) == (2, [], 1)
        assert "memory" in errors[0]
        assert (everything_in(server), everything(place)) == before
        client.config_set("maxmemory", 0)
        assert bloom(f"copy {server.url}#a {server.url}#b")[0] == 0
        assert all(seen(bloom, f"{server.url}#b", fingerprints(20_000)))


@pytest.mark.usefixtures("place")
def test_whoever_may_only_read_looks_and_changes_nothing(bloom, server):
    """With no other rights than those that the page of the commands names."""
    key = next(keys)
    for layout in ("bitmap", "sets"):
        with RedisFilter.from_url(server.url, key=f"{key}{layout}", layout=layout) as filter_:
            filter_.add_many(fingerprints(50))
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
    assert bloom(f"copy {url}#{key}bitmap one.bloom")[0] == 0
    url = url.replace("reader", "mover")
    assert bloom(f"copy {url}#{key}bitmap {url}#{key}new") == (0, ANY, [])
    assert bloom(f"copy one.bloom {url}#{key}newer") == (0, ANY, [])


def allow(client, user, text):
    """Let a user run the commands that a text names, and what every connection begins with."""
    commands = re.findall(r"`([a-z_|]+)`", text)
    client.execute_command(
        *("ACL", "SETUSER", user, "reset", "on", ">pass", "~*"),
        *(f"+{command}" for command in (*commands, "ping", "hello", "client", "select")
          if command not in NO_COMMANDS),
    )  # fmt: skip


@pytest.mark.usefixtures("place")
def test_a_replica_is_looked_at(bloom):
    """Which would refuse a single command that writes."""
    with LocalRedis() as primary, LocalRedis() as replica:
        for layout in ("bitmap", "sets"):
            with RedisFilter.from_url(primary.url, key=layout, layout=layout) as filter_:
                filter_.add_many(fingerprints(50))
        replica.client().replicaof(primary.HOST, primary.port)
        until(lambda: has_all(replica, primary))
        before = everything_in(replica)
        for layout in ("bitmap", "sets"):
            target = f"{replica.url}#{layout}"
            for line in ("info {}", "info {} --check"):
                assert bloom(line.format(target))[::2] == (0, []), line
            assert bloom(f"contains {target} {URL}")[0] == 1
            for line in (f"add {target} {URL}", f"delete {target} --yes"):
                code, _, errors = bloom(line)
                assert code == 2, line
                assert "replica" in errors[0], errors
        assert bloom(f"copy {replica.url}#bitmap one.bloom")[0] == 0
        assert everything_in(replica) == before


def has_all(replica, primary):
    there, here = (server.client().info("replication") for server in (primary, replica))
    up = here["master_link_status"] == "up"
    return up and here["slave_repl_offset"] >= there["master_repl_offset"]


def during(monkeypatch, commands, after, act):
    """Have something happen after so many of these commands were sent to Redis."""
    steps = itertools.count(1)
    send = Connection.send_packed_command

    def counted(self, command, *args, **kwargs):
        send(self, command, *args, **kwargs)
        packed = b"".join(command) if isinstance(command, list) else command
        named = any(b"\r\n%s\r\n" % name.encode() in packed for name in commands)
        if named and next(steps) == after:
            act()

    monkeypatch.setattr(Connection, "send_packed_command", counted)


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("after", [1, 2])
def test_an_interrupted_copy_changes_nothing(bloom, place, server, monkeypatch, after):
    server.client().flushall()  # all that is there is read, again and again
    key = next(keys)
    target = f"{server.url}#{key}"
    with RedisFilter.from_url(server.url, key=key, capacity=2_000_000) as filter_:
        filter_.add_many(fingerprints(3_000))
    assert bloom(f"copy {target} one.bloom")[0] == 0
    moves = [f"copy {source} {target}:copy" for source in (target, "one.bloom")]
    moves.append(f"copy {target} two.bloom")
    before = everything(place), everything_in(server)
    for line in moves:
        with monkeypatch.context() as patched:
            during(patched, MOVES, after, interrupt)
            code, lines, errors = bloom(line)
        assert (code, lines, errors) == (130, [], ["scrapy bloom copy: interrupted"]), line
        assert (everything(place), everything_in(server)) == before, line
        assert bloom(line)[0] == 0
        server.client().delete(f"{key}:copy")
        bloom(f"delete {target}:copy --yes")
        (place / "two.bloom").unlink(missing_ok=True)


@pytest.mark.parametrize("after", [1, 2])
def test_redis_lost_in_mid_copy_changes_nothing(bloom, place, monkeypatch, after):
    """And the copy is made when the server is back."""
    stored_job(place / "large", fingerprints(2_000), BLOOM_CAPACITY=3_000_000)
    with LocalRedis(persist=True) as server:
        line = f"copy large {server.url}#lost"
        with RedisFilter.from_url(server.url, key="a", capacity=3_000_000) as filter_:
            filter_.add_many(fingerprints(2_000))
        assert bloom(f"copy {server.url}#a a.bloom")[0] == 0
        for line in (f"copy a.bloom {server.url}#lost", f"copy {server.url}#a b.bloom"):
            with monkeypatch.context() as patched:
                during(patched, MOVES, after, server.kill)
                assert bloom(line)[0] == 2
            server.start()
            until(lambda: answers(server))
            target = line.split()[-1]
            assert bloom(f"info {target}")[0] == 2
            keys_left = [*server.client().scan_iter("lost:*")]
            assert target == "b.bloom" or all(server.client().ttl(name) > 0 for name in keys_left)
            assert bloom(line)[0] == 0
        assert all(seen(bloom, f"{server.url}#lost", fingerprints(2_000)))


def answers(server):
    """Return whether a server answers: one that was started again reads its log first."""
    try:
        return server.client().ping()
    except redis.RedisError:
        return False


def test_ctrl_c_at_the_command_line_leaves_nothing(tmp_path):
    process = subprocess.Popen(
        [*BLOOM, "add", "new", "-", "--spider", "books"],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Who runs the tests in the background of a shell has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - a call alone
    )
    process.stdin.write(b"http://example.com/\n" * 20_000)  # so many times what a pipe holds
    process.stdin.flush()
    assert (tmp_path / "new" / "bloom.lock").exists()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert errors.decode() == "scrapy bloom add: interrupted\n"
    assert process.returncode == 130
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("place")
def test_a_server_that_hangs_names_the_setting_that_waits_longer(bloom, monkeypatch):
    monkeypatch.setattr("scrapy_bloom.commands.redis_target._TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        code, _, [said] = bloom(f"info {target}#books", BLOOM_REDIS_TIMEOUT="0.3")
    assert code == 2
    assert said.endswith("If it is far or busy, raise BLOOM_REDIS_TIMEOUT.")


# Jobs


def test_a_mark_by_hand_does_not_make_a_killed_run_a_clean_one(bloom, place):
    """Nor does it lose the mark."""
    for folder, requests in (("whole", False), ("kept", True)):
        if requests:
            kept(place)
        open_job(place / folder, requests=requests).abandon()
        assert bloom(f"add {folder} {URL}x")[0] == 0
        told = "\n".join(bloom(f"info {folder}")[1])
        assert "crawl\tstopped cleanly" not in told
        assert bloom(f"contains {folder} {URL}x")[0] == 0


def test_what_cannot_be_copied_bit_by_bit_is_told(bloom, place, server):
    with RedisFilter.from_url(server.url, key="sets", layout="sets") as filter_:
        filter_.add_many(fingerprints(9))
    key = next(keys)
    with RedisFilter.from_url(server.url, key=key, shards=2) as filter_:
        filter_.add_many(fingerprints(90))
    stored_job(place / "rough", fingerprints(9), BLOOM_ERROR_RATE=0.01)
    for line, told in (
        (f"copy {server.url}#{key} new.bloom", "shards cannot be copied"),
        (f"copy {server.url}#sets new --spider a", "the fingerprint cannot be recovered"),
        (f"copy rough {server.url}#rough", "its bits cannot be copied"),
    ):
        code, _, (error,) = bloom(line)
        assert code == 2
        assert told in error
    assert not (place / "new").exists()


def test_what_is_forgotten_stays_so_in_every_copy(bloom, place, server):
    """A page that a copy suppressed would be lost in silence."""
    key, known = next(keys), fingerprints(500)
    with RedisFilter.from_url(server.url, key=key, capacity=1000) as filter_:
        filter_.add_many(known)
        filter_.forget_many(known[:50])
    stored_job(place / "job", known)
    forget = "\n".join(one.hex() for one in known[:50])
    assert bloom("forget job -", stdin=forget.encode())[0] == 0
    places = [f"{server.url}#{key}"]
    for way in (f"{server.url}#{key}:b", "one.bloom", f"{server.url}#{key}:c"):
        assert bloom(f"copy {places[-1]} {way}")[0] == 0
        places.append(way)
    for target in [*places, "job"]:
        found = seen(bloom, target, known)
        assert not any(found[:50]), target
        assert found[50:].count(False) < 50, target  # whose bit went with a forgotten page
    assert bloom(f"copy job {server.url}#{key}:d")[0] == 0
    assert not any(seen(bloom, f"{server.url}#{key}:d", known[:50]))


def test_a_copy_in_redis_grows_like_a_filter_of_crawls(bloom, place, server):
    key, known = next(keys), fingerprints(900)
    stored_job(place / "job", known, BLOOM_CAPACITY=1000)
    assert bloom(f"copy job {server.url}#{key}")[0] == 0
    canonical = bloom(f"info {server.url}#{key} --json")[1]
    assert canonical
    assert bloom(f"add {server.url}#{key} -", stdin=hexadecimal(fingerprints(3000, "b")))[0] == 0
    assert seen(bloom, f"{server.url}#{key}", [*known, *fingerprints(3000, "b")]) == [True] * 3900
    assert not any(seen(bloom, f"{server.url}#{key}", fingerprints(3000, "c")))
    assert bloom(f"copy {server.url}#{key} back")[0] == 0
    assert seen(bloom, "back", [*known, *fingerprints(3000, "b")]) == [True] * 3900
    job = open_job(place / "back", BLOOM_CAPACITY=1000)
    assert all(job.store.contains(one) for one in known)
    job.close()


def hexadecimal(known):
    return "\n".join(one.hex() for one in known).encode()


# Marks of others


@pytest.mark.parametrize("form", ["binary", "text", "both"])
def test_scrapys_own_marks_are_taken(bloom, place, form):
    known = fingerprints(3000)
    old = "".join(f"{one.hex()}\n" for one in known[:1500]).encode()
    new = b"".join(b"\0\x14" + one for one in known[1500:])
    odd = b"\0\x03abc" + b"abcdef\n"
    path = place / "requests.seen"
    path.write_bytes({"binary": new + odd, "text": old, "both": old + odd + new}[form])
    os.utime(path, ns=(0, 0))
    expected = {"binary": known[1500:], "text": known[:1500], "both": known}[form]
    count = len(expected) + 2 * (form != "text")
    told = [f"{count:,} pages marked, 0 were marked before"]
    assert bloom("add seen --file requests.seen --spider books")[:2] == (0, told)
    assert all(seen(bloom, "seen", expected))
    if form == "binary":  # which shows in its first byte, also in a pipe
        assert bloom("add other - --spider books", stdin=path.read_bytes())[:2] == (0, told)


def test_lines_are_urls_or_fingerprints(bloom, place):
    known = [one.hex() for one in fingerprints(9)]
    (place / "lines").write_text("\n".join([URL, "", *known, "example.com", "http://[/"]))
    code, lines, notes = bloom("add whole --file lines")
    assert (code, lines) == (1, ["1 pages marked, 9 were marked before"])
    assert [note.split(":")[0] for note in notes[:2]] == ["line 12", "line 13"]
    assert notes[2] == "2 of 13 lines were bad and left out"
    assert bloom(f"contains whole {URL}")[0] == 0


def scrapys_marks(folder, *, waiting):
    """Leave what a cleanly stopped crawl of Scrapy's own filter and scheduler leaves."""
    (folder / "requests.queue").mkdir(parents=True)
    (folder / "requests.seen").write_bytes(b"\0\x14" + fingerprints(1)[0])
    (folder / "requests.queue" / "active.json").write_text("[0]" if waiting else "[]")


@pytest.mark.parametrize("target", ["whole", "theirs", "new"])
def test_marks_are_not_added_without_the_requests_that_wait_beside_them(bloom, place, target):
    scrapys_marks(place / "theirs", waiting=True)
    before = contents(place)
    code, _, (*_, error) = bloom(f"add {target} --file theirs/requests.seen --spider books")
    assert code == 2
    assert "requests wait in theirs/requests.queue" in error
    assert contents(place) == before


def test_the_marks_of_a_killed_crawl_are_warned_of(bloom, place):
    (place / "theirs" / "requests.queue").mkdir(parents=True)
    (place / "theirs" / "requests.queue" / "0").write_bytes(b"requests")
    (place / "theirs" / "requests.seen").write_bytes(b"\0\x14" + fingerprints(1)[0])
    code, _, (warning,) = bloom("add whole --file theirs/requests.seen")
    assert code == 0
    assert "killed" in warning


@pytest.mark.parametrize("source", ["--file theirs/requests.seen", "-"])
def test_marks_are_not_added_where_requests_wait(bloom, place, source):
    """All of their pages would count as seen."""
    kept(place)
    scrapys_marks(place / "theirs", waiting=False)
    stdin = (place / "theirs" / "requests.seen").read_bytes() if source == "-" else b""
    before = contents(place)
    code, _, (*_, error) = bloom(f"add kept {source}", stdin=stdin)
    assert code == 2
    assert "requests wait in kept" in error
    assert contents(place) == before


def test_without_a_target_pages_are_added_to_that_of_the_project(bloom, place):
    line = "add --file urls.txt --spider books"
    assert bloom(line, JOBDIR=str(place / "job"))[0] == 0
    assert bloom(f"contains job {URL}")[0] == 0
    code, _, errors = bloom(line)
    assert (code, len(errors)) == (2, 1)
