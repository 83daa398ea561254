"""A client whose next calls meet what networks do, at once and without a network."""

from __future__ import annotations

from contextlib import suppress

import redis

FAULTS = ("not sent", "answer lost", "twice", "late")


class Flaky:
    """Wraps a client. `faults` is a list of what happens to the next calls, one after the other.

    - not sent: the call is not carried out, the connection breaks;
    - answer lost: it is carried out, the connection breaks;
    - twice: it is carried out twice;
    - late: the connection breaks, and the call is carried out when `deliver` is called.
    """

    def __init__(self, client):
        self._client = client
        self.faults = []
        self._late = []

    def __getattr__(self, name):
        return getattr(self._client, name)

    def execute_command(self, *arguments):
        fault = self.faults.pop(0) if self.faults else None
        if fault == "not sent":
            raise redis.ConnectionError(fault)
        if fault == "late":
            self._late.append(arguments)
            raise redis.ConnectionError(fault)
        answer = self._client.execute_command(*arguments)
        if fault == "twice":
            self._client.execute_command(*arguments)
        if fault == "answer lost":
            raise redis.ConnectionError(fault)
        return answer

    def deliver(self):
        """Carry out the calls that were held back."""
        late, self._late = self._late, []
        for arguments in late:
            with suppress(redis.exceptions.NoScriptError):  # the server did not have it yet
                self._client.execute_command(*arguments)
