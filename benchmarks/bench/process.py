"""Worker processes that are written lines to, and answer with lines of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final

PATIENCE: Final = 60.0
"""Seconds without a sign of life after which a worker is given up."""

Report = dict[str, Any]


class Process:
    """A module that runs as a program.

    :param module: its name.
    """

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._reports: SimpleQueue[Report] = SimpleQueue()
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.hear(json.loads(line))

    def hear(self, report: Report) -> None:
        """Keep a report for :meth:`next_report`; called in a thread of its own."""
        self._reports.put(report)

    def tell(self, line: str) -> None:
        """Write it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def next_report(self) -> Report:
        """Wait for a report.

        :raises TimeoutError: if nothing comes for a long time.
        """
        report: Report = wait_for(self._reports)
        return report

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.communicate()


def wait_for(reports: SimpleQueue[Any]) -> Any:
    """Return the next of some reports.

    :raises TimeoutError: if nothing comes for a long time.
    """
    try:
        return reports.get(timeout=PATIENCE)
    except Empty:
        raise TimeoutError(f"a worker has reported nothing for {PATIENCE} s") from None
