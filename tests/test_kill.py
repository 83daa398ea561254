"""SIGKILL at any moment: what is found next is the old state or the new one, never a mixture."""

import json

from support.jobs import run_python

KILLS = 200

RUNS = """
import json, os, random, signal, sys, time
from pathlib import Path

from support.contract import fingerprints
from support.jobs import IDENTITY, open_job
from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.storage.snapshot import read_snapshot

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
marker, beside = folder / "requests.bloom.running", folder / "requests.bloom.tmp"
dice = random.Random(4)


def run(number, pipe):
    job = open_job(folder, capacity=20_000)
    os.write(pipe, job.restored.to_bytes(4, "big"))
    for fingerprint in fingerprints(3000, number):
        job.add(fingerprint)
    job.close()


def start(number):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            run(number, writing)
        finally:
            os._exit(0)
    os.close(writing)
    return child, reading


def stop(child, reading):
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    restored = int.from_bytes(os.read(reading, 4) or b"\\xff", "big")
    os.close(reading)
    return killed, restored


def stored():
    snapshot = read_snapshot(folder / "requests.bloom", IDENTITY)
    return LocalFilter.from_state(snapshot.state) if snapshot else LocalFilter()


def stamp(path):
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


begin = time.perf_counter()
stop(*start(0))
whole_run = time.perf_counter() - begin
known = fingerprints(3000, 0)
hit = {"while it started": 0, "while it ran": 0, "while it stored": 0, "after it": 0}
number = 0
while sum(hit.values()) - hit["after it"] < kills:
    number += 1
    before = {path: stamp(path) for path in (marker, beside)}
    child, reading = start(number)
    # A third of the kills each: at any time, once the run is on, once the snapshot is being made.
    awaited = dice.choice([None, marker, beside])
    deadline = time.perf_counter() + 2 * whole_run
    while awaited and stamp(awaited) in (before[awaited], None) and time.perf_counter() < deadline:
        pass
    until = time.perf_counter() + dice.random() * (0.002 if awaited is beside else whole_run / 2)
    while time.perf_counter() < until:
        pass
    os.kill(child, signal.SIGKILL)
    killed, restored = stop(child, reading)
    assert restored in (len(known), 255), (restored, len(known))

    seen, run_here = stored(), fingerprints(3000, number)
    mine = seen.contains_many(run_here)
    assert all(seen.contains_many(known)), "a mark of an earlier run is lost"
    assert all(mine) or not any(mine), "half a run is stored"
    assert seen.info().items == len(known) + sum(mine)
    if all(mine):
        known += run_here
        hit["while it stored" if killed and marker.exists() else "after it"] += 1
    elif stamp(beside) not in (before[beside], None):
        hit["while it stored"] += 1
    else:
        hit["while it ran" if restored != 255 else "while it started"] += 1
    if len(known) > 30_000:  # a new job, so that a run stays short
        for path in folder.iterdir():
            path.unlink()
        known = []
print(json.dumps(hit))
"""


def test_sigkill_at_any_moment_leaves_the_old_state_or_the_new_one(tmp_path):
    result = run_python(RUNS, tmp_path, KILLS)
    assert result.returncode == 0, result.stderr
    hit = json.loads(result.stdout)
    after = hit.pop("after it")
    assert sum(hit.values()) >= KILLS
    assert all(count >= KILLS / 40 for count in hit.values()), (hit, after)
