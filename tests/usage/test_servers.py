"""Which Redis server the tests run on."""

import sys

import pytest
from testbed import servers

FAKE = "#!/bin/sh\necho Redis server v=0\n"


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """A server on PATH, where nobody has asked for it."""
    program = tmp_path / "redis-server"
    program.write_text(FAKE)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("REDIS_SERVER", raising=False)
    return program


def test_a_server_on_path_is_not_used_unless_it_is_named(on_path, tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "HOME", tmp_path / "servers")
    monkeypatch.setattr(servers, "SERVERS", {servers.DEFAULT: ("nowhere", "run")})
    with pytest.raises(servers.NotAvailableError, match="name its program: REDIS_SERVER="):
        servers.program()
    monkeypatch.setenv("REDIS_SERVER", str(on_path))
    assert servers.program() == str(on_path)


def test_a_named_server_must_start(on_path, tmp_path, monkeypatch):
    on_path.write_text("#!/bin/sh\nexit 1\n")
    for program in (on_path, tmp_path / "missing"):
        monkeypatch.setenv("REDIS_SERVER", str(program))
        with pytest.raises(servers.NotAvailableError, match=str(program)):
            servers.program()


def test_a_missing_server_is_skipped_and_is_an_error_only_if_it_was_named(tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "HOME", tmp_path)
    monkeypatch.setattr(servers, "SERVERS", {"no-such-server": ("no-such-server", "run")})
    monkeypatch.setenv("PATH", str(tmp_path))
    command = [sys.executable, "-c", ""]
    [(name, result, failed)] = servers.each([], command)
    assert (name, failed) == ("no-such-server", False)
    assert "skipped: " in result
    assert [failed for *_, failed in servers.each(["no-such-server", "other"], command)] == [1, 1]


@pytest.mark.usefixtures("on_path")
def test_each_server_that_is_there_runs_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "HOME", tmp_path / "servers")
    monkeypatch.setattr(servers, "SERVERS", {"redis-server": ("redis-server", "run")})
    line = "import os, sys; sys.exit(not os.environ['REDIS_SERVER'].endswith('/run'))"
    for command, failed in (line, False), ("exit(1)", True):
        [(_, result, bad)] = servers.each([], [sys.executable, "-c", command])
        assert bad == failed
        assert "Redis server v=0" in result
