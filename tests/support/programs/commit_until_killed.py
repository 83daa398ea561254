"""Commit known states to a store, back to back, until somebody kills this: FILE EXACT."""

import sys
from pathlib import Path

from support.commits import Commits, hasty

hasty()
commits = Commits(Path(sys.argv[1]), exact=sys.argv[2] == "1")
while True:
    commits.step()
    print(commits.number, flush=True)
