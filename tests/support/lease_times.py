"""Leases of workers in Redis, as tests move them in time."""

from support.internals import stop_beating

_SHIFT = """
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local number, lease, rest = fields[i + 1]:match('^(%d+) ([%d.]+)(.*)$')
  if fields[i]:sub(1, 2 + #ARGV[2]) == 'w:' .. ARGV[2] and lease then
    lease = string.format('%s %.6f%s', number, lease + ARGV[1], rest)
    redis.call('HSET', KEYS[1], fields[i], lease)
  end
end
"""


def shift_leases(server, key, seconds, name=""):
    """Make leases what they are for a server whose clock was moved the other way.

    Leases that are shifted back are also what a server has that was frozen for so long.

    :param name: of the only worker whose lease it is; by default it is done to all.
    """
    server.client().eval(_SHIFT, 1, key, seconds, name)


def all_are_well(server, key):
    """Let the server be one at which everybody else has renewed a lease a moment ago."""
    client = server.client()
    moment = client.time()[0] - 2
    client.hset(key, mapping={"heard_since": 1, "heard": moment, "swept": moment})


def let_die(server, key, queue):
    """Let a worker die without a word, and its lease run out; everybody else is well."""
    stop_beating(queue.link)
    shift_leases(server, key, -3600, queue.worker.name)
    all_are_well(server, key)
