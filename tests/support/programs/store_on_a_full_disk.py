"""Store a job where files may have so many bytes: python store_on_a_full_disk.py FOLDER BYTES."""

import resource
import signal
import sys
from pathlib import Path

from support.contract import fingerprints
from support.jobs import open_job

job = open_job(Path(sys.argv[1]))
job.filter.add_many(fingerprints(5000, "more"))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    job.close()
except Exception as error:
    print(type(error).__name__, error)
