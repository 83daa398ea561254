"""Run commands without root's powers, on files that nobody else may read."""

import os
import sys
from pathlib import Path
from tempfile import mkdtemp

from scrapy.settings import Settings
from support.contract import fingerprints
from support.jobs import become_an_ordinary_user, stored_job

from scrapy_bloom.commands import load
from scrapy_bloom.commands.runner import call

os.chdir(mkdtemp())
stored_job(Path("whole"), fingerprints(50))
if call("copy", load("copy"), ["whole", "whole.bloom"], Settings()) != 0:
    raise SystemExit("it was not copied")
for path in (Path(), Path("whole")):
    path.chmod(0o555)
for path in (Path("whole/bloom.sqlite"), Path("whole.bloom")):
    path.chmod(0o000)
become_an_ordinary_user()
URL = "http://example.com/"
for line in (
    "info whole",
    f"contains whole.bloom {URL}",
    f"add whole {URL}",
    "copy whole y.bloom",
    f"add new {URL} --spider books",
    f"add new.bloom {URL}",
    "delete whole --yes",
    "delete whole.bloom --yes",
):
    name, *arguments = line.split()
    if call(name, load(name), arguments, Settings()) != 2:
        raise SystemExit(f"it was done: {line}")
sys.stdout.flush()
