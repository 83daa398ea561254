"""Kill a job at random moments, and look at its snapshot: python kill_often.py FOLDER KILLS.

A crawl would put such a job aside. Here the marker that says so is removed, and the next run
resumes from the snapshot, so that kills meet one of any size.

Prints how many kills fell into which part of a run, as JSON.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from support.contract import fingerprints
from support.jobs import IDENTITY, open_job

from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.storage.snapshot import read_snapshot

ITEMS = 3000  # of one run
INVENTED = 2
NOT_OPENED = 255


def run(folder, number, pipe):
    """Open the job, tell the pipe what was restored, add, store."""
    job = open_job(folder, capacity=20_000)
    os.write(pipe, job.restored.to_bytes(4, "big"))
    for fingerprint in fingerprints(ITEMS, number):
        job.filter.add(fingerprint)
    job.close()


def start(folder, number):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            run(folder, number, writing)
        finally:
            os._exit(0)
    os.close(writing)
    return child, reading


def stop(child, reading):
    """Wait for a run; return whether it was killed, and how many marks it began with."""
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    restored = int.from_bytes(os.read(reading, 4) or bytes([NOT_OPENED]), "big")
    os.close(reading)
    return killed, restored


def stored(folder):
    snapshot = read_snapshot(folder / "requests.bloom", IDENTITY)
    return LocalFilter.from_state(snapshot.state) if snapshot else LocalFilter()


def stamp(path):
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def spin(condition, seconds):
    """Wait without giving the processor away: a kill shall hit a moment, not a time slice."""
    deadline = time.perf_counter() + seconds
    while condition() and time.perf_counter() < deadline:
        pass


def kill_often(folder, kills):
    """Return how many kills hit which part of a run."""
    marker, beside = folder / "requests.bloom.running", folder / "requests.bloom.tmp"
    dice = random.Random(4)
    begin = time.perf_counter()
    stop(*start(folder, 0))
    whole_run = time.perf_counter() - begin
    known = fingerprints(ITEMS, 0)
    hit = {"while it started": 0, "while it ran": 0, "while it stored": 0, "after it": 0}
    number = 0
    while sum(hit.values()) - hit["after it"] < kills:
        number += 1
        before = {None: None, marker: stamp(marker), beside: stamp(beside)}
        child, reading = start(folder, number)
        # A third of the kills each: at any time, once the run is on, once the snapshot is made.
        awaited = dice.choice([None, marker, beside])
        if awaited:
            spin(lambda a=awaited, b=before: stamp(a) in (b[a], None), 2 * whole_run)
        longest = 0.002 if awaited is beside else whole_run / 2
        spin(lambda: True, dice.random() * longest)
        os.kill(child, signal.SIGKILL)
        killed, restored = stop(child, reading)
        assert restored in (len(known), NOT_OPENED), (restored, len(known))

        seen, run_here = stored(folder), fingerprints(ITEMS, number)
        mine = seen.contains_many(run_here)
        assert all(seen.contains_many(known)), "a mark of an earlier run is lost"
        # The filter may invent a fingerprint now and then: about one in some million asked for.
        assert all(mine) or sum(mine) <= INVENTED, "half a run is stored"
        marker_left = marker.exists()
        marker.unlink(missing_ok=True)
        added = ITEMS if all(mine) else 0
        assert abs(seen.info().items - len(known) - added) <= INVENTED
        if all(mine):
            known += run_here
            hit["while it stored" if killed and marker_left else "after it"] += 1
        elif stamp(beside) not in (before[beside], None):
            hit["while it stored"] += 1
        else:
            hit["while it ran" if restored != NOT_OPENED else "while it started"] += 1
        if len(known) > 10 * ITEMS:  # a new job, so that a run stays short
            for path in folder.iterdir():
                path.unlink()
            known = []
    return hit


if __name__ == "__main__":
    print(json.dumps(kill_often(Path(sys.argv[1]), int(sys.argv[2]))))
