"""Let a fork use and close a job that is open: python fork_with_a_job.py FOLDER."""

import os
import sys
from pathlib import Path

from support.contract import fingerprints
from support.jobs import everything_in, open_job

from scrapy_bloom.errors import JobInUseError

folder = Path(sys.argv[1])
job = open_job(folder)
job.filter.add_many(fingerprints(10))
before = everything_in(folder)
child = os.fork()
if child == 0:
    job.filter.add_many(fingerprints(1000, "child"))
    job.close()
    os._exit(0 if everything_in(folder) == before else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
try:
    open_job(folder)
except JobInUseError:
    print("still ours")
job.filter.add(b"after")
job.close()
assert open_job(folder).restored == 11
print("stored")
