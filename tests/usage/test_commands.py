"""`scrapy bloom`: what each verb prints, does and refuses, on each kind of target."""

import json
import os
import shlex
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Timer

import pytest
from filelock import FileLock
from scrapy import Request
from support.contract import fingerprints
from support.filters import contents, everything, everything_in, hexadecimal, seen
from support.jobs import NAME, SPIDER, SharedCrawl, kept_job, list_failed, open_job, stored_job
from support.processes import Run, environment
from support.queues import Crawler
from support.waiting import PATIENCE
from testbed.localredis import keys

from scrapy_bloom.commands import VERBS, runner
from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.crawl.outcomes import Reason
from scrapy_bloom.local import job as job_module
from scrapy_bloom.local.feeds import pack_due
from scrapy_bloom.local.job import LOCK, lock_job
from scrapy_bloom.local.metadata import DUE, PID, THROUGH

pytestmark = pytest.mark.server  # `make check` leaves all of them out

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
URLS = [f"http://example.com/{number}" for number in range(20)]


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job with fifty marks in the working directory."""
    monkeypatch.chdir(tmp_path)
    stored_job(tmp_path / "job", fingerprints(50), BLOOM_CAPACITY=1000)
    return tmp_path / "job"


def fields(lines):
    """Return what `info` prints, by name."""
    return {line[:14].strip(): line[14:].strip() for line in lines}


def told(bloom, target, line="info"):
    return json.loads("\n".join(bloom(f"{line} {target} --json")[1]))


@pytest.mark.parametrize("target", ["job", "one.sqlite", "redis"])
def test_each_verb_does_the_same_in_each_kind_of_place(bloom, job, server, target):
    """Not more than it says, and nothing to what is beside its target."""
    (one, two), (new,) = fingerprints(2), fingerprints(1, "b")
    spider, key = SPIDER, ""
    if target == "redis":
        spider, key = "", next(keys)  # `add` leaves it open
        target = f"{server.url}#{key}"
        for beside in ("", ":1"):
            line = f"add {target}{beside} - --spider {SPIDER}"
            marks = hexadecimal(fingerprints(50))
            assert bloom(line, stdin=marks, BLOOM_CAPACITY=1000)[0] == 0
        server.client().set(f"{key}:3", "not ours")
        others = everything_in(server, f"{key}:1") | everything_in(server, f"{key}:3")
    elif target != "job":
        (job / NAME).rename(target)
    before = everything(job.parent), everything_in(server, key)
    assert seen(bloom, target, fingerprints(50)) == [True] * 50
    assert seen(bloom, target, fingerprints(9, "b")) == [False] * 9
    facts = told(bloom, target)
    assert (facts["items"], facts.get("spider", ""), facts["slices"]) == (50, spider, 1)
    assert facts["fingerprinter"] == "scrapy.utils.request.RequestFingerprinter"
    assert "secret" not in json.dumps(facts)
    shown = fields(bloom(f"info {target}")[1])
    assert (shown["marks"], shown["expected lost"]) == ("50", "less than one page")
    assert shown.get("spider", "").startswith(spider)
    assert bloom(f"queue {target}")[0] == 2
    assert (everything(job.parent), everything_in(server, key)) == before

    assert bloom(f"add {target} {URLS[0]}") == (0, ["1 page marked; 0 marked before"], [])
    again = f"add {target} {URLS[0]} {URLS[1]}"
    assert bloom(again)[1] == ["1 page marked; 1 marked before"]
    forgotten = "1 page eligible again; 1 not in the filter"
    assert bloom(f"forget {target} {one.hex()} {new.hex()}") == (1, [forgotten], [])
    assert seen(bloom, target, [one, two, new]) == [False, True, False]
    assert told(bloom, target)["forgotten"] == 1
    assert bloom(f"add {target} {one.hex()}")[1] == ["1 page marked; 0 marked before"]
    assert seen(bloom, target, [one, two, new]) == [True, True, False]

    assert bloom(f"delete {target} --yes")[0] == 0
    assert bloom(f"info {target}")[0] == bloom(f"delete {target} --yes")[0] == 2
    if key:
        left = everything_in(server, key)
        assert left.pop(key.encode())[b"program"] == b"scrapy-bloom"  # the note that it was deleted
        assert left == others
        assert server.client().ttl(key) > 0
    else:
        assert not [*Path().glob("**/*.sqlite*")]


def test_fingerprints_that_were_made_in_another_way_are_added_in_vain(bloom, job):
    others = hexadecimal(fingerprints(150, "of another kind"))
    code, lines, [error] = bloom(f"add {job} -", stdin=others)
    assert (code, lines) == (1, ["150 pages marked; 0 marked before"])
    assert error.startswith("none of these fingerprints was among the 50 pages that the filter")
    for known in others, fingerprints(1, "c")[0].hex().encode():
        assert bloom(f"add {job} -", stdin=known)[::2] == (0, [])


@pytest.mark.parametrize("kind", ["new", "redis"])
@pytest.mark.usefixtures("job")
def test_add_creates_a_filter_by_the_settings(bloom, server, key, kind):
    target = f"{server.url}#{key}" if kind == "redis" else kind
    made = {"BLOOM_CAPACITY": 1000, "BLOOM_WINDOW": "8h"}
    urls = "\n".join(URLS).encode()
    assert bloom(f"add {target} - --spider books", stdin=urls, **made)[0] == 0
    facts = told(bloom, target)
    assert (facts["items"], facts["error_rate"], facts["window"]) == (20, 1e-6, 8 * 3600)
    assert bloom(f"why {target} {URLS[1]} http://example.com:80/2#x")[0] == 0


def test_why_goes_by_the_rules_of_the_settings_and_notes_others(bloom, job):
    tracked, usual = f"{URLS[0]}?utm_source=x", {"BLOOM_CANONICAL": "usual"}
    assert bloom(f"add new {URLS[0]} --spider a", **usual)[0] == 0
    assert bloom(f"why new {tracked}", **usual)[::2] == (0, [])
    (way,) = json.loads("\n".join(bloom(f"canon {tracked} --json", **usual)[1]))
    assert way["steps"] == [["tracking", URLS[0]], ["canonical", URLS[0]]]
    code, _, (note,) = bloom(f"why new {tracked}")
    assert code == 1
    assert "The filter was filled with the rules" in note
    other = "support.spiders.OtherFingerprints"
    code, _, (error,) = bloom(f"why new {tracked}", REQUEST_FINGERPRINTER_CLASS=other)
    assert code == 2
    assert "give -s REQUEST_FINGERPRINTER_CLASS=scrapy.utils" in error
    assert bloom(f"why {URLS[0]}", JOBDIR=str(job.parent / "new"), **usual)[0] == 0


def test_plan_computes_the_memory_of_a_filter_by_the_settings_and_says_so(bloom):
    settings = {"BLOOM_CAPACITY": "2M", "BLOOM_ERROR_RATE": 1e-9, "BLOOM_WINDOW": "30d"}
    code, lines, notes = bloom("plan 10M -p 1e-4 --json", **settings)
    plan = json.loads("\n".join(lines))
    assert (code, plan["sized"]["items"], plan["sized"]["error_rate"]) == (0, 10_000_000, 1e-4)
    assert 20_000_000 < plan["sized"]["bytes"] < plan["grown"]["bytes"] < 110_000_000
    window = "With BLOOM_WINDOW = 30d the pages are those of a window."
    assert notes == ["Read from the settings: BLOOM_CAPACITY = '2M'.", window]
    assert bloom("plan 10M", **settings)[1][2].startswith("grown from 2,000,000 ")
    assert bloom("plan")[1][1].split()[3] == "1,000,000"


def test_the_docs_show_what_the_commands_print(bloom, job):
    kept_job(job.parent / "job2", known=fingerprints(334), urls=URLS, spider="site")
    (job.parent / "job2").rename(job / "job")
    os.chdir(job)
    shown = [block.splitlines() for block in PAGE.read_text("utf-8").split("```")[1::2]]
    transcripts = {lines[1][15:]: lines[2:] for lines in shown if lines[1][:2] == "$ "}
    assert len(transcripts) == 5
    for line, there in transcripts.items():
        code, lines, errors = bloom(line)
        assert (code, errors) == (0, []), line
        if line.startswith("info"):
            assert [*fields(lines)] == [*fields(there)]
        else:
            assert lines == there


KINDS = ["503"] * 12 + ["ValueError in parse"] * 8


def failing(name, server, kinds=KINDS, message="for a test"):
    """Make a crawl in a job directory or in Redis whose pages have failed; return its target."""
    if name == "kept":
        job = open_job(Path(name), requests=True)
        for url, kind in zip(URLS, kinds, strict=True):
            list_failed(job.store, Request(url), kind, message)
        job.close()
        return name
    shared = SharedCrawl(server)
    shared.offer(*(Request(url, dont_filter=True) for url in URLS))
    for taken, kind in zip(shared.take(20), kinds, strict=True):
        shared.fail(taken, Reason(kind, message))
    shared.close()
    return shared.target


@pytest.mark.parametrize("place", ["kept", "redis"])
@pytest.mark.usefixtures("job")
def test_the_failed_list_is_shown_put_back_and_dropped(bloom, server, place):
    target = failing(place, server)
    code, lines, errors = bloom(f"queue {target} --failed --peek 99")
    assert (code, errors, len(lines)) == (1, [], 23)
    assert {line.split()[-1] for line in lines[1:21]} == {*URLS}
    code, lines, _ = bloom(f"queue {target} --failed --reason ValueError --peek 2")
    named = shlex.join(["scrapy", "bloom", "queue", target])
    assert code == 1
    assert lines[-2] == f"2 of 8 shown. All: {named} --failed --reason ValueError --peek 8"
    assert lines[-1] == "The next run fetches them again, until they have failed in three runs."
    shown = fields(bloom(f"info {target}")[1])
    assert shown["failed"] == "20 (12 \u00d7 503, 8 \u00d7 ValueError in parse)"
    assert shown["failed list"] == f"{named} --failed"
    assert (shown["done"], shown["waiting"]) == ("0", "0")
    facts = told(bloom, target, "queue --failed --peek 99 --reason ValueError")
    assert (facts["count"], len(facts["failed"])) == (8, 8)
    for row in facts["failed"]:
        assert (row["reason"], row["tries"], row["message"]) == (KINDS[-1], 1, "for a test")
        assert (row["url"] in URLS, bool(row["worker"])) == (True, place == "redis")
    dropped = "12 requests marked as done"
    assert bloom(f"queue {target} --drop --reason 503") == (0, [dropped], [])
    assert told(bloom, target)["account"]["done"] == 12
    for typo in "503", "ValueErr", "404 --unparsed":
        code, (line,), _ = bloom(f"queue {target} --retry --reason {typo}")
        assert code == 1
        assert line == "0 requests put back; --reason must be one of 'ValueError in parse'"
    assert bloom(f"queue {target} --drop --unparsed --reason ValueError")[1][0][:2] == "0 "
    assert bloom(f"queue {target} --retry") == (0, ["8 requests put back"], [])
    assert bloom(f"queue {target} --failed")[0] == 0
    code, lines, _ = bloom(f"queue {target}")
    assert lines[0] == "8 requests to be fetched, 0 of them in flight"
    assert {line.split()[-1] for line in lines[-8:]} < {*URLS}


@pytest.mark.usefixtures("job")
def test_what_is_given_up_can_be_put_back_alone(bloom):
    job = open_job(Path("kept"), requests=True)
    for tries in 1, 3:
        list_failed(job.store, Request(f"http://example.com/{tries}"), tries=tries)
    row = job.store.push(job.store.queue("0", None), b"")
    job.store.fail(row, FailedPage.of(b"", Reason("404", unparsed=True), time.time()))
    job.close()
    code, lines, _ = bloom("queue kept --given-up")
    assert (code, lines[1].split()[-1]) == (0, "http://example.com/3")
    assert lines[-1].endswith("To fetch them: scrapy bloom queue kept --retry --given-up")
    assert bloom("queue kept --retry --given-up")[1] == ["1 request put back"]
    assert bloom("queue kept --given-up")[1] == ["No request is given up."]
    assert told(bloom, "kept")["account"]["decisions"] == {"404": 1}


@pytest.mark.parametrize("place", ["kept", "redis"])
@pytest.mark.usefixtures("job")
def test_nothing_that_is_printed_controls_a_terminal(bloom, server, place):
    """A title in the message of an exception is somebody else's text, and so is a reason."""
    hostile = "\x1b]0;owned\x07\x1b[31mSale\x9b\x7f\u202e\n"
    target = failing(place, server, [f"Sale\x1b[2J{number % 2}" for number in range(20)], hostile)
    for line in ("info {}", "queue {} --failed", f"why {{}} {URLS[0]}", "why {} \x1b[31m://"):
        for form in ("", " --json"):
            _, lines, errors = bloom(f"{line.format(target)}{form}")
            assert all(each.isprintable() for each in [*lines, *errors])
    assert "Sale" in "".join(bloom(f"why {target} {URLS[0]}")[1])


@pytest.mark.parametrize("place", ["kept", "redis"])
@pytest.mark.usefixtures("job")
def test_a_change_of_nothing_or_beside_a_crawl_writes_nothing(bloom, server, place):
    target = failing(place, server)
    if place == "kept":
        os.utime("kept/bloom.sqlite", (0, 0))
    before = everything(Path("kept"))
    for line in "--retry --reason 404", "--drop --reason 404":
        assert bloom(f"queue {target} {line}")[1][0].startswith("0 requests ")
    assert everything(Path("kept")) == before
    with ExitStack() as stack:
        if place == "kept":
            assert told(bloom, "kept")["written"] == 0
            stack.enter_context(lock_job(Path(target)))
        else:
            queue = Crawler(*target.split("#"), order="lifo", spider=SPIDER, project="shop")
            stack.enter_context(queue).exchange(through=False)
        for act in ("retry", "drop"):
            code, lines, (error,) = bloom(f"queue {target} --{act}")
            assert (code, lines) == (2, [])
            assert ("using this job directory" if place == "kept" else "uses this crawl") in error
            assert "choose another" not in error
    assert told(bloom, target)["account"]["failed"] == 20


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("plan many", "pages = 'many'"),
        ("info", "expected a TARGET"),
        ("info", "a BLOOM_REDIS_URL. If the spider's custom_settings have it, add --spider NAME."),
        ("top job", "found a filter without requests"),
        ("top job --interval 0", "--interval = '0': must be seconds from 0.1 to 3600."),
        ("info redis://localhost", "redis://localhost#books:books:bloom"),
        ("info redis://localhost:1#a}b{", "braces must enclose"),
        ("why job", "expected URLs"),
        ("add new http://example.com/", "needs the name of its spider: add --spider"),
        ("canon http://a.test ''", "'': Missing scheme"),
        ("delete job", "to delete job with 50 pages, add --yes"),
        ("queue job --reason 503", "--reason needs --failed"),
        ("queue job --peek -1", "--peek = -1: must be 0 or more"),
        ("add job http://example.com/ -s REQUEST_FINGERPRINTER_CLASS=no.Class", "cannot be loaded"),
    ],
)
def test_an_impossible_command_ends_with_one_line(bloom, job, line, said):
    before = contents(job.parent)
    line, _, setting = line.partition(" -s ")
    code, lines, errors = bloom(line, **dict([setting.split("=")] if setting else []))
    assert (code, lines, len(errors)) == (2, [], 1)
    assert errors[0].startswith(f"scrapy bloom {line.split()[0]}: ")
    assert said in errors[0]
    assert contents(job.parent) == before


@pytest.mark.usefixtures("job")
def test_each_example_works_and_bad_arguments_do_not(bloom, capsys):
    exclusive = "queue --retry --drop", "queue --failed --unparsed"
    for line in (*(f"{name} --nonsense" for name in VERBS), *exclusive):
        with pytest.raises(SystemExit, match="2"):
            bloom(line)
        assert f"scrapy bloom {line.split()[0]}: error: " in capsys.readouterr().err
    for name in ("plan", "info", "why", "canon", "add", "forget", "delete"):
        assert bloom(f"{name} {runner.load(name).EXAMPLE}")[0] in (0, 1), name


def test_a_wrong_verb_and_help(tmp_path):
    wrong = f"expected a verb, found 'contians'. Verbs: {', '.join(VERBS)}.\n"
    for line, code, shown in (("contians", 2, wrong), ("", 0, "\n  canon     show canonical URLs")):
        run = Run(tmp_path, ["scrapy", "bloom", *line.split()], environment())
        assert run.end() == code, run.log
        assert shown in run.output + run.log


@pytest.mark.usefixtures("job")
def test_each_of_many_lines_is_answered_or_reported(bloom):
    lines = [f"http://example.com/{number}" for number in range(12_000)]
    for number in range(0, 12_000, 4_000):
        lines[number] = f"no url {number}"
    text = "\n".join([*lines, "ab" * 9]).encode()
    code, answers, errors = bloom("why job -", stdin=text)
    assert (code, len(answers)) == (1, 1 + 12_000 - 3)
    assert {" ".join(line.split()[1:]) for line in answers[1:]} == {"not seen"}
    assert errors[0].startswith("line 1: 'no url 0': Missing scheme")
    assert "expected 40 hexadecimal digits, not 18" in errors[3]
    assert errors[4] == "skipped 4 of 12,001 lines"
    marked = ["11,997 pages marked; 0 marked before"]
    assert bloom("add new - --spider books", stdin=text)[:2] == (1, marked)


def test_a_job_in_use_is_looked_at_and_not_changed(bloom, job):
    crawl = open_job(job)
    os.utime(job / "bloom.sqlite", (0, 0))  # what was committed since is in the log
    shown = fields(bloom("info job")[1])["status"]
    assert shown.startswith(f"running as process {os.getpid()}; last written 20")
    assert seen(bloom, "job", fingerprints(1)) == [True]
    before = everything(job)
    for line in (f"add job {URLS[0]}", f"forget job {URLS[0]}", "delete job --yes"):
        code, _, (error,) = bloom(line)
        assert code == 2
        assert "is using this job directory" in error
    assert everything(job) == before
    crawl.close()
    assert fields(bloom("info job")[1])["status"].startswith("stopped; last written 20")
    crawl = open_job(job)  # runs as long as it holds its lock, whichever process has its number
    for number in 2**22 + 1, os.getpid():  # no number is as high as the first one
        crawl.store.meta[PID] = number
        crawl.store.commit()
        assert fields(bloom("info job")[1])["status"].startswith(f"running as process {number}; ")
    crawl.abandon()
    assert fields(bloom("info job")[1])["status"].startswith("killed; ")


def test_a_crawl_starts_while_a_command_tries_its_lock(job, monkeypatch):
    monkeypatch.setattr(job_module, "PATIENCE", 60)
    open_job(job).abandon()
    locked = FileLock(job / LOCK, thread_local=False)
    locked.acquire()  # as `info` does
    Timer(0.1, locked.release).start()
    open_job(job).close()


def in_database(path, statement):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)


LOOKING = "info {}", "top {}", "queue {}", f"why {{}} {URLS[0]}"
CHANGING = f"forget {{}} {URLS[0]}", "delete {} --yes"
ADD = f"add {{}} {URLS[0]} --spider books"
"""It makes a target where there is none."""

LOCAL = {
    "nowhere": lambda: None,
    "text.bloom": lambda: Path("text.bloom").write_text("nothing of ours\n"),
    "empty.bloom": lambda: Path("empty.bloom").touch(),
    "theirs.bloom": lambda: in_database("theirs.bloom", "CREATE TABLE a (b)"),
    "cut.bloom": lambda: Path("cut.bloom").write_bytes(Path("job", NAME).read_bytes()[:9000]),
    "newer": lambda: in_database(kept_job(Path("newer")) / NAME, "PRAGMA user_version = 99"),
    "older": lambda: in_database(kept_job(Path("older")) / NAME, "PRAGMA user_version = 4"),
}
SHARED = {
    "nothing": {},
    "text": "x",
    "slices": {"slices": "0:0:0"},
    "key of another format": {"format": 6},
}
"""What a key holds: nothing, a text, or a filter but for a field of its header."""


@pytest.mark.parametrize("fault", [*LOCAL, *SHARED])
def test_a_missing_or_unreadable_target_is_refused_by_every_verb(bloom, job, server, key, fault):
    target, named, nothing = fault, fault, fault in ("nowhere", "nothing")
    if fault in LOCAL:
        LOCAL[fault]()
    else:
        target, named, held = f"{server.url}#{key}", key, SHARED[fault]
        if held == "x":
            server.client().set(key, held)
        elif held:
            assert bloom(ADD.format(target))[0] == 0
            server.client().hset(key, mapping=held)
    before = contents(job.parent), everything_in(server, key)
    for line in (*LOOKING, *CHANGING, *([] if nothing else [ADD])):
        code, lines, errors = bloom(line.format(target))
        assert (code, lines, len(errors)) == (2, [], 1), (line, lines, errors)
        assert "found" in errors[0], (line, errors)
        assert ("found no" in errors[0]) is nothing, (line, errors)
        assert named in errors[0], (line, errors)
        assert ("found format" in errors[0]) is (fault in ("newer", "older")), (line, errors)
        assert (contents(job.parent), everything_in(server, key)) == before, line


@pytest.mark.parametrize("line", ["add large -", "add new - --spider books"])
def test_a_full_disk_leaves_what_was_there(bloom, job, line):
    stored_job(Path("large"), fingerprints(50))
    before = contents(job.parent)
    command = f"{sys.executable} -m scrapy bloom {line}"
    done = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; ulimit -f 80; exec {command}"],
        env=environment(),
        input=hexadecimal(fingerprints(20_000, "b")),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    left = contents(job.parent)
    left = {path: data for path, data in left.items() if data or path in before}
    left = {path: data for path, data in left.items() if "-" not in path.name}
    assert left == before  # beside a file there may be a log without a commit
    assert seen(bloom, "large", [*fingerprints(50), *fingerprints(50, "b")]) == (
        [True] * 50 + [False] * 50
    )


def test_workers_that_are_killed_have_finished_nothing(bloom, server):
    crawl = SharedCrawl(server)
    crawl.offer()
    for change, said in ((), "running"), (("hset", "0 1 0"), "killed"), (("hdel",), "stopped"):
        if change:
            command, *value = change
            key = crawl.target.partition("#")[2]
            getattr(server.client(), command)(key, f"w:{crawl.worker.name}", *value)
        code, lines, _ = bloom(f"info {crawl.target} --finished")
        assert (code, fields(lines)["status"].partition(";")[0]) == (1, said)


@pytest.mark.parametrize("requests", [False, True])
def test_a_job_that_was_killed_before_its_run_had_begun_is_opened_after_a_command(
    bloom, tmp_path, monkeypatch, requests
):
    with monkeypatch.context() as patch:
        patch.setattr(job_module.Job, "begin", lambda _: None)
        open_job(tmp_path / "job", requests=requests).abandon()
    assert bloom(f"add {tmp_path / 'job'} {URLS[0]}")[0] == 0
    open_job(tmp_path / "job", requests=requests).close()


@pytest.mark.parametrize("requests", [False, True])
def test_a_mark_by_hand_does_not_make_a_killed_run_a_clean_one(bloom, job, requests):
    folder = kept_job(job.parent / "kept") if requests else job
    open_job(folder, requests=requests).abandon()
    assert bloom(f"add {folder} {URLS[0]}")[0] == 0
    assert fields(bloom(f"info {folder}")[1])["status"].startswith("killed")
    assert bloom(f"info {folder} --finished")[0] == 2 - requests  # others' queues: unknown
    assert bloom(f"why {folder} {URLS[0]}")[0] == 0


@pytest.mark.parametrize("due", [{}, {"items.jsonl": (0, bytes(1234))}])
def test_a_crawl_is_not_finished_while_a_feed_lacks_items(bloom, tmp_path, due):
    job = open_job(tmp_path / "kept", requests=True)
    job.store.meta |= {THROUGH: 1, DUE: pack_due(due)}
    job.close()
    code, lines, _ = bloom(f"info {tmp_path / 'kept'} --finished")
    assert code == bool(due)
    assert fields(lines)["status"].startswith("stopped" if due else "finished")
    assert fields(lines).get("due to feeds", "-").startswith("up to 1.2 kB" if due else "-")
