"""Workers of one filter in Redis: processes to be killed or frozen, and what their records say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SHIFT = """
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local number, lease = fields[i + 1]:match('^(%d+) ([%d.]+)$')
  if fields[i]:sub(1, 2) == 'w:' and lease then
    lease = string.format('%s %.6f', number, lease + ARGV[1])
    redis.call('HSET', KEYS[1], fields[i], lease)
  end
end
"""


class Worker:
    """A process that uses a filter; as a context manager it does not outlive the test."""

    def __init__(self, server, key):
        program = str(Path(__file__).with_name("programs") / "filter_worker.py")
        self.process = subprocess.Popen(
            [sys.executable, program, server.url, key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "open\n"

    def tell(self, word):
        """Let it do something; return what it prints of that."""
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()


def leases(server, key):
    """Return the end of each worker's lease."""
    fields = server.client().hgetall(key)
    records = {name[2:]: record.split() for name, record in fields.items() if name[:2] == b"w:"}
    return {name: float(words[1]) for name, words in records.items() if words[1] != b"dead"}


def shift_leases(server, key, seconds):
    """Make leases what they are for a server whose clock was moved the other way.

    Leases that are shifted back are also what a server has that was frozen for so long.
    """
    server.client().eval(_SHIFT, 1, key, seconds)
