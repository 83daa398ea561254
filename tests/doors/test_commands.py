"""`scrapy bloom`: what it prints, how it ends, on a terminal and in a pipe."""

import io
import itertools
import json
import os
import pickle
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.settings import Settings
from support.contract import fingerprints
from support.filters import everything, everything_in
from support.jobs import SPIDER, kept_job, open_job, stored_job
from support.layouts import plans
from support.processes import environment, run
from support.waiting import PATIENCE

from scrapy_bloom import RedisFilter
from scrapy_bloom.commands import NAMES, delete, load, runner
from scrapy_bloom.options import in_arguments
from scrapy_bloom.redis.client import Target
from scrapy_bloom.redis.shard import Call, Entry, Shard
from scrapy_bloom.redis.worker import Worker

pytestmark = pytest.mark.server  # `make check` leaves all of them out

BLOOM = ("-m", "scrapy", "bloom")
URLS = [f"http://example.com/{number}" for number in range(20)]
keys = (f"commands:{number}" for number in itertools.count())


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored_job(tmp_path / "job", fingerprints(50), BLOOM_CAPACITY=1000)
    return tmp_path / "job"


@pytest.fixture(params=["job", "one.bloom", "redis"])
def target(request, job, bloom, server):
    """The same filter in each kind of place."""
    name = f"{server.url}#{next(keys)}" if request.param == "redis" else request.param
    if name != "job":
        assert bloom(f"copy {job.name} {name}")[0] == 0
    return name


def fields(lines):
    return dict(line.split("\t", 1) for line in lines)


def seen(bloom, target, known):
    """Return what `contains` says of fingerprints."""
    lines = "\n".join(one.hex() for one in known).encode()
    return [line.startswith("seen") for line in bloom(f"contains {target} -", stdin=lines)[1]]


# Every sub-command


def test_a_target_is_asked_and_looking_changes_nothing(bloom, target, tmp_path, server):
    before = everything(tmp_path), everything_in(server)
    assert seen(bloom, target, fingerprints(50)) == [True] * 50
    assert seen(bloom, target, fingerprints(9, "b")) == [False] * 9
    told = json.loads("\n".join(bloom(f"info {target} --json")[1]))
    assert (told["items"], told["spider"], told["slices"]) == (50, SPIDER, 1)
    assert told["fingerprinter"] == "scrapy.utils.request.RequestFingerprinter"
    assert "secret" not in json.dumps(told)
    code, findings, _ = bloom(f"info {target} --check")
    assert (code, {line.split("\t")[0] for line in findings}) == (0, {"good"})
    assert (everything(tmp_path), everything_in(server)) == before


def test_marks_are_added_and_forgotten(bloom, target):
    one, two, new = *fingerprints(2), *fingerprints(1, "b")
    page = f"{URLS[0]} {URLS[1]}"
    added = "2 pages marked, 0 were marked before"
    assert bloom(f"add {target} {page}") == (0, [added], [])
    assert bloom(f"add {target} {page}")[1] == ["0 pages marked, 2 were marked before"]
    forgotten = "1 pages are eligible again, 1 were new anyway"
    line = f"forget {target} {one.hex()} {new.hex()}"
    assert bloom(line) == (1, [forgotten], [])
    assert seen(bloom, target, [one, two, new]) == [False, True, False]
    assert fields(bloom(f"info {target}")[1])["forgotten"] == "1"
    assert bloom(f"add {target} {one.hex()}")[1][0].startswith("1 pages marked")
    assert seen(bloom, target, [one, two, new]) == [True, True, False]
    assert fields(bloom(f"info {target}")[1])["forgotten"] == "0"


def test_it_is_deleted_with_all_that_belongs_to_it(bloom, target, job, server):
    assert bloom(f"delete {target} --yes")[0] == 0
    assert bloom(f"info {target}")[0] == 2
    assert target != "job" or [path.name for path in job.iterdir()] == ["bloom.lock"]
    key = target.partition("#")[2].encode()
    left = [name for name in everything_in(server) if key and name.startswith(key)]
    assert left == [key] * bool(key)  # the note that it was deleted
    assert not key or server.client().ttl(key) > 0


@pytest.mark.parametrize("place", ["new", "new.bloom", "redis"])
def test_a_new_filter_is_made_as_the_settings_say(bloom, job, server, place):
    target = f"{server.url}#{next(keys)}" if place == "redis" else place
    made = {"BLOOM_CAPACITY": 1000, "BLOOM_WINDOW": "8h"}
    (job.parent / "urls").write_text("\n".join(URLS))
    assert bloom(f"add {target} --file urls --spider books", **made)[0] == 0
    told = json.loads("\n".join(bloom(f"info {target} --json")[1]))
    assert (told["items"], told["error_rate"], told["window"]) == (20, 1e-6, "8h")
    assert bloom(f"contains {target} {URLS[1]} http://example.com:80/2#x")[:2] == (
        0,
        [
            f"seen\t{URLS[1]}\t{URLS[1]}",
            "seen\thttp://example.com:80/2#x\thttp://example.com/2",
        ],
    )
    assert bloom(f"contains {target} {URLS[1]}x")[0] == 1


@pytest.mark.usefixtures("job")
def test_info_is_for_people_and_json_for_programs(bloom):
    told = fields(bloom("info job")[1])
    exact = json.loads("\n".join(bloom("info job --json")[1]))
    assert float(told["expected lost"]) == pytest.approx(exact["expected_lost"], rel=0.01)
    assert len(told["expected lost"]) <= 9
    assert exact["expected_lost"] > 0


@pytest.mark.usefixtures("job")
def test_it_uses_the_rules_that_the_filter_was_filled_with(bloom):
    tracked = f"{URLS[0]}?utm_source=x"
    assert bloom(f"add new {URLS[0]} --spider a", BLOOM_CANONICAL="usual")[0] == 0
    assert bloom(f"contains new {tracked}")[0] == 0
    code, _, (note,) = bloom(f"contains new {tracked}", BLOOM_CANONICAL="safe")
    assert code == 1
    assert "The filter was filled with the rules" in note
    other = "support.shared_spiders.TheirFingerprints"
    code, _, (error,) = bloom(f"contains new {tracked}", REQUEST_FINGERPRINTER_CLASS=other)
    assert code == 2
    assert "give -s REQUEST_FINGERPRINTER_CLASS=scrapy.utils" in error


def test_a_plan_has_any_of_three_from_the_others(bloom):
    code, (sized, grown), _ = bloom("plan 10M")
    assert (code, sized.split("\t")[:3]) == (0, ["capacity set", "10000000", "1e-06"])
    size = int(sized.split("\t")[3])
    assert 40_000_000 < size < int(grown.split("\t")[3]) < 50_000_000
    assert int(bloom(f"plan --memory {size}")[1][0].split("\t")[1]) == pytest.approx(1e7, rel=1e-3)
    rate = bloom(f"plan 10M --memory {size}")[1][0].split("\t")[2]
    assert float(rate) == pytest.approx(1e-6, rel=0.01)
    planned = json.loads("\n".join(bloom("plan 1e9 -p 1e-4 --json")[1]))
    assert planned["computed"] == "memory"
    assert planned["grown"]["lost"] > 10_000


@pytest.mark.parametrize(
    "line",
    [
        "info job",
        "info job --check",
        "contains job " + "ab" * 20,
        f"add job {URLS[0]}",
        f"forget job {URLS[0]}",
        "copy job y.bloom",
        "queue kept",
        "delete job --yes",
        "plan 1M",
        f"canon {URLS[0]}",
    ],
)
def test_each_prints_json(bloom, job, line):
    kept_job(job.parent / "kept", urls=URLS)
    _, lines, _ = bloom(f"{line} --json")
    json.loads("\n".join(lines))
    assert "secret" not in "".join(lines)


def test_the_requests_of_a_job_are_shown(bloom, job):
    known = fingerprints(50)
    kept = kept_job(job.parent / "kept", known=known, withheld=fingerprints(2, "b"), urls=URLS)
    before = everything(kept)
    told = fields(bloom("info kept")[1])
    assert (told["items"], told["waiting"], told["forgotten"]) == ("50", "20", "2")
    assert seen(bloom, "kept", fingerprints(2, "b")) == [False] * 2  # their requests are lost
    code, lines, _ = bloom("queue kept --peek 3")
    assert (code, lines[0], lines[2]) == (0, "waiting\t20", "priority\t0\t20")
    assert [line.split("\t")[3] for line in lines[-3:]] == URLS[:-4:-1]
    assert (
        bloom("queue kept", SCHEDULER_DISK_QUEUE="PickleFifoDiskQueue")[1][-1].split("\t")[3]
        == (URLS[-1])
    )
    code, lines, (note,) = bloom("copy kept kept.bloom")
    assert code == 0
    assert "20 requests wait there" in note
    assert everything(kept) == before


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"


def test_the_page_shows_what_is_printed(bloom, job):
    known = fingerprints(334)
    kept_job(job.parent / "job2", known=known, urls=URLS, spider="site").rename(job / "job")
    os.chdir(job)
    shown = [block.splitlines() for block in PAGE.read_text("utf-8").split("```")[1::2]]
    transcripts = {lines[1][15:]: lines[2:] for lines in shown if lines[1][:2] == "$ "}
    assert len(transcripts) == 4
    for line, told in transcripts.items():
        code, lines, errors = bloom(line)
        assert (code, errors) == (line.startswith("contains"), []), line
        if line.startswith("info"):
            assert [*fields(lines)] == [*fields(told)]
        elif not code:
            assert lines == told


def test_the_failed_list_is_shown_and_put_back(bloom, server):
    key = next(keys)
    target = f"{server.url}#{key}"
    link = Worker(Target(server.url), 5.0)
    link.connect()
    (plan,) = plans(project="shop", spider=SPIDER, order="lifo pickle")
    shard = Shard(link, key, plan, in_arguments)
    bodies = [pickle.dumps(Request(url).to_dict(), protocol=4) for url in URLS]
    shard.call(Call([Entry("p", None, body) for body in bodies]))
    while shard.counts.failed < len(URLS):
        taken = shard.call(Call(take=len(URLS))).taken
        shard.call(Call(unreadable=[one.id for one in taken]))
    code, lines, errors = bloom(f"queue {target} --failed --peek 99")
    assert (code, errors) == (1, [])
    assert {line.split("\t")[3] for line in lines} == {*URLS}
    assert f"note\tfailed\t{len(URLS)} requests" in "\n".join(bloom(f"info {target} --check")[1])
    assert bloom(f"queue {target} --retry") == (0, ["20 requests are back in the queue"], [])
    assert bloom(f"queue {target} --failed") == (0, [], [])
    assert bloom(f"queue {target}")[1][:2] == ["waiting\t20", "in flight\t0"]
    assert [one.tries for one in shard.call(Call(take=20)).taken] == [0] * 20
    shard.leave()
    link.close()


# Errors


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("plan", "give a number of items"),
        ("plan many", "items = 'many'"),
        ("plan 10M -p 1e-6 --memory 1G", "give two of"),
        ("plan 10M --memory 1k", "give bytes, such as '512M'"),
        ("plan 1G --memory 1M", "too few for 1,000,000,000 items"),
        ("info", "give a TARGET"),
        ("info nowhere", "nowhere: found no filter"),
        ("info redis://localhost", "redis://localhost#books:books:bloom"),
        ("info redis://localhost:1#a", "refused"),
        ("info http://example.com", "is no target"),
        ("contains job", "give URLs"),
        ("contains job --file nowhere", "nowhere: No such file"),
        ("contains nowhere http://example.com/", "found no filter"),
        ("contains job http://example.com/ -", "not both"),
        ("contains job http://example.com/ --file urls", "not both"),
        ("add job", "give URLs"),
        ("add job --file nowhere", "nowhere: No such file"),
        ("add new http://example.com/", "give its name with --spider"),
        ("copy job", "the following arguments are required"),
        ("copy job job", "found a filter, expected none"),
        ("copy job nodir/a.bloom", "nodir: found no such folder"),
        ("delete job", "There is nobody to ask here: give --yes"),
        ("queue job", "found a filter without requests"),
        ("queue job --retry", "is for crawls in Redis"),
        ("info --jsno job", "unrecognized arguments: --jsno"),
    ],
)
def test_what_cannot_be_done_ends_in_one_line(bloom, job, line, told):
    before = everything(job.parent)
    code, lines, errors = bloom(line)
    assert (code, lines, len(errors)) == (2, [], 1)
    assert errors[0].startswith(f"scrapy bloom {line.split()[0]}: ")
    assert told in errors[0]
    assert {path: one[1] for path, one in everything(job.parent).items()} == {
        path: one[1] for path, one in before.items()
    }


@pytest.mark.usefixtures("job")
def test_bad_arguments_are_shown_an_example_that_works(bloom):
    for name in NAMES:
        error = bloom(f"{name} --nonsense")[2][0]
        assert error.endswith(f"Example: scrapy bloom {name} {load(name).EXAMPLE}"), name
    for name in ("plan", "info", "contains", "canon", "add", "forget", "delete"):
        assert bloom(f"{name} {load(name).EXAMPLE}")[0] in (0, 1), name


def test_delete_asks(job, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for answer, code in (("n\n", 1), ("\n", 1), ("y\n", 0)):
        monkeypatch.setattr(delete.sys, "stdin", Terminal(answer))
        assert runner.call("delete", load("delete"), ["job"], Settings()) == code
        assert (job / "bloom.sqlite").exists() == (code == 1)


def test_without_redis_the_line_to_install_it_is_shown():
    done = run(
        "-c",
        "import sys; sys.modules['redis'] = None; from scrapy.cmdline import execute;"
        "execute(['scrapy', 'bloom', 'info', 'redis://localhost#a'])",
    )
    assert done.returncode == 2
    assert "pip install 'scrapy-bloom[redis]'" in done.stderr


# Pipes


def pipe(folder, line, **options):
    """Run a line of the shell, in which `bloom` stands for the command."""
    line = line.replace("bloom ", f"{shlex.join([sys.executable, *BLOOM])} ")
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        **options,
    )


@pytest.mark.usefixtures("job")
def test_many_lines_with_bad_ones(bloom):
    """Every line is answered or reported."""
    lines = [f"http://example.com/{number}" for number in range(100_000)]
    for number in range(0, 100_000, 10_000):
        lines[number] = f"no url {number}"
    text = "\n".join(lines).encode()
    code, answers, errors = bloom("contains job -", stdin=text)
    assert (code, len(answers)) == (1, 100_000 - 10)
    assert {line.split("\t")[0] for line in answers} == {"new"}
    assert errors[0].startswith("line 1: 'no url 0': Missing scheme")
    assert errors[1].startswith("line 10,001: ")
    assert errors[-1] == "10 of 100,000 lines were bad and left out"
    marked = ["99,990 pages marked, 0 were marked before"]
    assert bloom("add new - --spider books", stdin=text)[:2] == (1, marked)


@pytest.mark.usefixtures("job")
def test_a_fingerprint_of_another_length_is_a_bad_line(bloom):
    code, lines, notes = bloom("contains job -", stdin=b"abcdefabcdefabcdef\n")
    assert (code, lines) == (1, [])
    assert "expected 40 hexadecimal digits, not 18" in notes[0]


def test_a_pipe_that_is_closed_early_is_no_error(job):
    (job.parent / "lines").write_text("http://example.com/\n" * 60_000)
    done = pipe(job.parent, "bloom contains job --file lines | head -n 1")
    assert (done.stdout, done.stderr) == ("new\thttp://example.com/\thttp://example.com/\n", "")


# A terminal


@pytest.mark.scrapy
def test_a_terminal_shows_columns(job):
    shown = on_terminal(job.parent, "info", "job").splitlines()
    assert "items           50" in shown
    assert "capacity        1000" in shown


def on_terminal(folder, *arguments):
    """Run a sub-command on a terminal; return what it shows."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *BLOOM, *arguments],
        cwd=folder,
        env={**environment(), "COLUMNS": "120", "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            data = os.read(ours, 1 << 16)
        except OSError:  # so Linux tells the end
            break
        if not data:
            break
        shown += data
    os.close(ours)
    assert process.wait(PATIENCE) == 0
    return shown.decode()


# Scrapy's command


@pytest.mark.scrapy
def test_the_overview_names_every_sub_command_and_each_has_help():
    done = run(*BLOOM, "-h")
    assert done.returncode == 0
    assert all(f"\n  {name} " in done.stdout for name in NAMES)
    done = run(*BLOOM, "plan", "-h")
    assert done.returncode == 0
    assert "usage: scrapy bloom plan" in done.stdout
    assert "example:\n  scrapy bloom plan 10M" in done.stdout


@pytest.mark.parametrize("arguments", [(), ("nonsense",)])
def test_an_unknown_sub_command_ends_in_one_line(arguments):
    done = run(*BLOOM, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"scrapy bloom: give one of: {', '.join(NAMES)}\n"


# Beside a crawl


def test_a_job_in_use_is_looked_at_and_not_changed(bloom, job):
    crawl = open_job(job)
    assert fields(bloom("info job")[1])["crawl"] == "running"
    assert fields(bloom("info job")[1])["process"] == str(os.getpid())
    assert seen(bloom, "job", fingerprints(1)) == [True]
    before = everything(job)
    for line in (f"add job {URLS[0]}", f"forget job {URLS[0]}", "delete job --yes"):
        code, _, (error,) = bloom(line)
        assert code == 2
        assert "is using this job directory" in error
    assert everything(job) == before
    crawl.close()
    assert fields(bloom("info job")[1])["crawl"] == "stopped cleanly"


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("layout", ["bitmap", "sets"])
def test_a_filter_under_workers_is_looked_at_and_added_to_but_not_deleted(bloom, server, layout):
    key = next(keys)
    target = f"{server.url}#{key}"
    with RedisFilter.from_url(server.url, key=key, layout=layout) as filter_:
        filter_.add_many(fingerprints(50))
        assert fields(bloom(f"info {target}")[1])["workers alive"] == "1"
        assert seen(bloom, target, fingerprints(2)) == [True] * 2
        code, _, errors = bloom(f"delete {target} --yes")
        assert code == 2
        assert "uses this filter" in errors[-1]
        code, _, (error,) = bloom(f"copy job {target}")
        assert code == 2
        assert "found a hash, expected none" in error
        assert bloom(f"add {target} {URLS[0]}")[0] == 0
        assert filter_.add_many(fingerprints(50)) == [True] * 50
    assert bloom(f"delete {target} --yes")[0] == 0
