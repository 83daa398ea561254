"""Open a job without root's powers: python open_as_ordinary_user.py FOLDER."""

import sys
from pathlib import Path

from support.jobs import become_an_ordinary_user, open_job

become_an_ordinary_user()
try:
    open_job(Path(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error)
