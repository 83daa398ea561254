"""Change filters without root's powers."""

from pathlib import Path
from tempfile import mkdtemp

from support.contract import fingerprints
from support.filters import project
from support.jobs import become_an_ordinary_user, stored_job

from scrapy_bloom import BloomError, tools

folder = Path(mkdtemp())
job = folder / "job"
stored_job(job, fingerprints(50))
tools.copy(job, folder / "x.bloom")
for path in (folder, job):
    path.chmod(0o555)
for path in (job / "requests.bloom", folder / "x.bloom"):
    path.chmod(0o000)
become_an_ordinary_user()
for change in (
    lambda: tools.info(job),
    lambda: tools.contains(folder / "x.bloom"),
    lambda: tools.add(job, fingerprints=fingerprints(5, "b")),
    lambda: tools.copy(job, folder / "y.bloom"),
    lambda: tools.add(folder / "new", project=project()),
    lambda: tools.add(folder / "new.bloom", project=project()),
    lambda: tools.delete(job),
    lambda: tools.delete(folder / "x.bloom"),
):
    try:
        change()
    except BloomError as error:  # noqa: PERF203 - one after the other
        print(type(error).__name__, error)
    else:
        raise SystemExit("it was done")
