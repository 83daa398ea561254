"""Change filters where files may have few bytes: python tools_on_a_full_disk.py FOLDER."""

import resource
import signal
import sys
from pathlib import Path

from support.contract import fingerprints
from support.jobs import everything_in, stored_job

from scrapy_bloom import BloomError, tools

folder = Path(sys.argv[1])
job = folder / "job"
stored_job(job, fingerprints(5000), capacity=100_000)
size = (job / "requests.bloom").stat().st_size
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))
before = everything_in(job), [path.name for path in folder.iterdir()]
for change in (
    lambda: tools.add(job, fingerprints=fingerprints(5, "b")),
    lambda: tools.copy(job, folder / "x.bloom"),
    lambda: tools.copy(job, folder / "other"),
):
    try:
        change()
    except BloomError as error:
        print(type(error).__name__, error)
    else:
        raise SystemExit("it was written")
    if (everything_in(job), [path.name for path in folder.iterdir()]) != before:
        raise SystemExit(f"{list(folder.rglob('*'))}")
