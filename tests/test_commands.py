"""`scrapy bloom`: what it prints, how it ends, on a terminal and in a pipe."""

import io
import json
import os
import pty
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from scrapy.settings import Settings
from support.contract import fingerprints
from support.filters import everything
from support.frontiers import kept_job
from support.jobs import open_job, stored_job
from support.processes import PATIENCE, environment, run

from scrapy_bloom.commands import info
from scrapy_bloom.commands.context import call
from scrapy_bloom.registry import COMMANDS

pytestmark = pytest.mark.server  # `make check` leaves all of them out

BLOOM = ("-m", "scrapy", "bloom")
URLS = [f"http://example.com/{number}" for number in range(20)]


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored_job(tmp_path / "job", fingerprints(50))
    return tmp_path / "job"


def fields(lines):
    return dict(line.split("\t", 1) for line in lines)


@pytest.mark.usefixtures("job")
def test_info_is_for_people_and_json_for_programs(bloom):
    told = fields(bloom("info job")[1])
    exact = json.loads("\n".join(bloom("info job --json")[1]))
    assert float(told["expected lost"]) == pytest.approx(exact["filter"]["expected_lost"], rel=0.01)
    assert len(told["expected lost"]) <= 9
    assert exact["filter"]["expected_lost"] > 0


def test_info_leaves_out_the_sizes_of_a_filter_without_a_snapshot(bloom, tmp_path):
    kept_job(tmp_path / "kept", journal=fingerprints(50), urls=URLS)
    (tmp_path / "kept" / "requests.bloom").unlink()  # as in a first run
    told = fields(bloom(f"info {tmp_path / 'kept'}")[1])
    assert (told["items"], told["waiting"], told["marks since"]) == ("50", "20", "50")
    unknown = {"capacity", "fill ratio", "bytes", "error rate", "expected lost", "hashes"}
    assert not unknown & {*told}


def test_info_tells_rules_in_words():
    rules = {"*": {"level": "safe", "drop": ["a", "b"]}, "example.com": {"level": "off"}}
    record = {"form": 2, "rules": rules, "w3lib": "2.5.0"}
    told = "safe, drop a b, 1 domains with rules of their own, form 2, w3lib 2.5.0"
    assert info.rules_in_words(record) == told
    record["rules"] = {"sha256": "abc", "domains": 30, "begin": "{"}
    assert info.rules_in_words(record).startswith("SHA-256 abc, 30 domains")
    assert info.rules_in_words({}) == ""


# Every sub-command


@pytest.mark.usefixtures("job")
@pytest.mark.scrapy
def test_all_sub_commands_in_one_life(bloom, tmp_path, server):
    (tmp_path / "urls.txt").write_text("\n".join(URLS) + "\n")
    redis = f"{server.url}#life"
    marked = "20 pages marked, 0 were marked before"
    assert bloom("add new --file urls.txt --spider books")[:2] == (0, [marked])
    assert bloom("contains new http://example.com/1 http://example.com:80/2#x")[:2] == (
        0,
        [
            "seen\thttp://example.com/1\thttp://example.com/1",
            "seen\thttp://example.com:80/2#x\thttp://example.com/2",
        ],
    )
    assert bloom("contains new http://example.com/x")[:2] == (
        1,
        ["new\thttp://example.com/x\thttp://example.com/x"],
    )
    added = "1 pages marked, 1 were marked before"
    assert bloom("add new http://example.com/x http://example.com/1")[:2] == (0, [added])
    forgotten = "1 pages are new once more, 0 were new anyway"
    assert bloom("forget new http://example.com/x")[:2] == (0, [forgotten])
    assert bloom("contains new http://example.com/x")[0] == 1
    assert bloom("add new http://example.com/x")[0] == 0
    assert fields(bloom("info new")[1])["items"] == "21"
    for line in (
        f"copy new {redis}",
        f"copy {redis} out.bloom",
        f"info {redis}",
        f"info {redis} --check",
        "info out.bloom --check",
        f"contains {redis} http://example.com/1",
        f"delete {redis} --yes",
        "delete new --yes",
        "copy out.bloom new",
        f"copy new {server.url} --key life2",
        f"copy {server.url} out2.bloom --key life2",
        f"copy {server.url} {server.url} --key life2 --to-key life3",
        f"info {server.url} --key life3",
    ):
        code, _, errors = bloom(line)
        assert (code, errors) == (0, []), line
    assert fields(bloom("info new")[1])["items"] == "21"
    assert bloom(f"info {redis}")[0] == 2


def test_a_plan_has_any_of_three_from_the_others(bloom):
    code, (sized, grown), _ = bloom("plan 10M")
    assert (code, sized.split("\t")[:3]) == (0, ["capacity set", "10000000", "1e-06"])
    assert int(sized.split("\t")[3]) == 43_450_368
    assert int(grown.split("\t")[3]) > 70_000_000
    (sized, _) = bloom("plan --memory 43451000")[1]
    assert int(sized.split("\t")[1]) == pytest.approx(10_000_000, rel=1e-3)
    (sized, _) = bloom("plan 10M --memory 43451000")[1]
    assert float(sized.split("\t")[2]) == pytest.approx(1e-6, rel=0.01)
    planned = json.loads("\n".join(bloom("plan 1e9 -p 1e-4 --json")[1]))
    assert planned["asked"] == "memory"
    assert planned["grown"]["lost"] > 10_000


@pytest.mark.parametrize(
    "line",
    [
        "info job",
        "info job --check",
        "contains job http://example.com/ --fingerprint " + "ab" * 20,
        "add job http://example.com/",
        "forget job http://example.com/",
        "add job --file urls.txt",
        "copy job y.bloom",
        "delete job --yes",
        "plan 1M",
        "canon http://example.com/",
    ],
)
@pytest.mark.usefixtures("job")
def test_each_prints_json(bloom, tmp_path, line):
    (tmp_path / "urls.txt").write_text("http://example.com/\n")
    line = line.replace("http://example.com/ --fingerprint", "--fingerprint")
    _, lines, _ = bloom(f"{line} --json")
    json.loads("\n".join(lines))
    assert "secret" not in "".join(lines)


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
        ("info job --key a", "--key is for the URL of a Redis server"),
        ("info redis://localhost", "--key books:bloom"),
        ("info redis://localhost:1#a", "cannot be reached"),
        ("info http://example.com", "is no target"),
        ("contains job", "give URLs"),
        ("contains job --file nowhere", "nowhere: No such file"),
        ("contains nowhere http://example.com/", "found no filter"),
        ("add job", "give URLs"),
        ("add job --file nowhere", "nowhere: No such file"),
        ("add new http://example.com/", "give its name with --spider"),
        ("copy job", "the following arguments are required"),
        ("copy job job", "found a filter, expected none"),
        ("delete job", "There is nobody to ask here: give --yes"),
        ("delete job --leftovers", "is not in Redis"),
        ("queue job", "found no requests"),
        ("info --jsno job", "unrecognized arguments: --jsno"),
    ],
)
def test_what_cannot_be_done_ends_in_one_line(bloom, job, line, told):
    before = everything(job)
    code, lines, errors = bloom(line)
    assert (code, lines, len(errors)) == (2, [], 1)
    assert errors[0].startswith(f"scrapy bloom {line.split()[0]}: ")
    assert told in errors[0]
    assert everything(job) == before


@pytest.mark.usefixtures("job")
def test_bad_arguments_are_shown_an_example_that_works(bloom):
    for name in COMMANDS:
        command = import_module(COMMANDS[name])
        error = bloom(f"{name} --nonsense")[2][0]
        assert error.endswith(f"Example: scrapy bloom {name} {command.EXAMPLE}"), name
    for name in ("plan", "info", "contains", "canon", "add", "forget", "delete"):
        command = import_module(COMMANDS[name])
        assert bloom(f"{name} {command.EXAMPLE}")[0] in (0, 1), name


def test_delete_asks(job, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    context = import_module("scrapy_bloom.commands.context")
    for answer, code in (("n\n", 1), ("\n", 1), ("y\n", 0)):
        monkeypatch.setattr(context.sys, "stdin", Terminal(answer))
        args = ["job"]
        assert call("delete", import_module(COMMANDS["delete"]), args, Settings()) == code
        assert (job / "requests.bloom").exists() == (code == 1)


def test_a_job_in_use_ends_in_one_line(bloom, job):
    crawl = open_job(job)
    code, _, (error,) = bloom("add job http://example.com/")
    assert code == 2
    assert f"process {os.getpid()} on" in error or "spider 'books' of this process" in error
    assert bloom("info job")[0] == 0
    crawl.close()


# Pipes


@pytest.mark.usefixtures("job")
def test_many_lines_with_bad_ones(tmp_path):
    """Every line is answered or reported."""
    lines = [f"http://example.com/{number}" for number in range(200_000)]
    for number in range(0, 200_000, 10_000):
        lines[number] = f"no url {number}"
    path = tmp_path / "lines"
    path.write_text("\n".join(lines))
    with path.open("rb") as stdin:
        done = pipe("contains", "job", "-", stdin=stdin)
    assert done.returncode == 1
    answers = done.stdout.decode().splitlines()
    assert len(answers) == 200_000 - 20
    assert {line.split("\t")[0] for line in answers} == {"new"}
    errors = done.stderr.decode().splitlines()
    assert errors[0].startswith("line 1: 'no url 0': Missing scheme")
    assert errors[1].startswith("line 10,001: ")
    assert errors[-1] == "20 of 200,000 lines were bad and left out"
    with path.open("rb") as stdin:
        done = pipe("add", "new", "-", "--strict", "--spider", "books", stdin=stdin)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("scrapy bloom add: line 1: 'no url 0'")
    assert not (tmp_path / "new").exists()
    with path.open("rb") as stdin:
        done = pipe("add", "new", "-", "--spider", "books", stdin=stdin)
    assert done.returncode == 1
    assert done.stdout == b"199,980 pages marked, 0 were marked before\n"


@pytest.mark.usefixtures("job")
def test_a_pipe_that_is_closed_early_is_no_error(tmp_path):
    (tmp_path / "lines").write_text("http://example.com/\n" * 60_000)
    line = f"{shlex.join([sys.executable, *BLOOM])} contains job --file lines | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stdout == b"new\thttp://example.com/\thttp://example.com/\n"
    assert done.stderr == b""


@pytest.mark.usefixtures("job")
@pytest.mark.scrapy
def test_lines_are_answered_as_they_come(tmp_path):
    process = subprocess.Popen(
        [sys.executable, *BLOOM, "add", "job", "-"],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    out, _ = process.communicate(b"http://example.com/1\nhttp://example.com/2", timeout=PATIENCE)
    assert out == b"2 pages marked, 0 were marked before\n"


def pipe(*arguments, stdin):
    return subprocess.run(
        [sys.executable, *BLOOM, *arguments],
        stdin=stdin,
        cwd=Path(stdin.name).parent,
        env=environment(),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )


# A terminal


@pytest.mark.usefixtures("job")
@pytest.mark.scrapy
def test_a_terminal_shows_tables(tmp_path):
    shown = on_terminal(tmp_path, "info", "job")
    assert "50 (5% of 1,000)" in shown
    assert "│" in shown
    assert "┏" in shown


@pytest.mark.usefixtures("job")
def test_a_terminal_shows_progress_that_leaves_nothing_behind(tmp_path, server):
    shown = on_terminal(tmp_path, "copy", "job", f"{server.url}#terminal")
    assert "writing Redis at" in shown
    assert "\x1b[" in shown
    assert "terminal: 50 items in" in shown.splitlines()[-1]


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
def test_the_overview_names_every_sub_command():
    done = run(*BLOOM, "-h")
    assert done.returncode == 0
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout


@pytest.mark.scrapy
def test_each_sub_command_has_help():
    done = run(*BLOOM, "plan", "-h")
    assert done.returncode == 0
    assert "usage: scrapy bloom plan" in done.stdout
    assert "example:\n  scrapy bloom plan 10M" in done.stdout


@pytest.mark.parametrize(("arguments", "code"), [((), 2), (("nonsense",), 2)])
def test_an_unknown_sub_command_ends_in_one_line(arguments, code):
    done = run(*BLOOM, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"scrapy bloom: give one of: {', '.join(COMMANDS)}\n"
