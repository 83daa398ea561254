"""Run commands without root's powers, on files that nobody else may read."""

import os
import sys
from pathlib import Path
from tempfile import mkdtemp

from scrapy.settings import Settings
from support.contract import fingerprints
from support.jobs import become_an_ordinary_user, stored_job

from scrapy_bloom.commands.runner import call

os.chdir(mkdtemp())
stored_job(Path("whole"), fingerprints(50)).chmod(0o000)
for path in (Path(), Path("whole")):
    path.chmod(0o555)
become_an_ordinary_user()
URL = "http://example.com/"
for line in (
    "info whole",
    f"contains whole/bloom.sqlite {URL}",
    f"add whole {URL}",
    "copy whole other",
    f"add new {URL} --spider books",
    "delete whole --yes",
):
    name, *arguments = line.split()
    if call(name, arguments, Settings()) != 2:
        raise SystemExit(f"it was done: {line}")
sys.stdout.flush()
