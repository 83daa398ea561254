"""Filters and requests that any number of workers share in Redis.

A request goes from ``backend`` through ``queue`` and ``worker`` to ``lua/call.lua``, which marks
and stores it; and back with a call that takes it, to ``turns``, which sends it in time. ``pacing``
says when to call, and ``packing`` writes and reads requests. ``filter`` and ``plain`` are for
crawls with other schedulers, and ``reader`` only reads.

Six ideas: a header, a call, a lease, a surprise, what a worker knows, a turn. `lua/_common.lua` has
the header, and `lua/call.lua` the call. `link` runs scripts; `worker` is one worker at one key: its
lease, what it knows, and its surprises; `filter` and `queue` build on it. `lua/_workers.lua` says
what becomes of dead workers, `turns` and `lua/_queue.lua` whose turn is next.
"""

from importlib.util import find_spec

from scrapy_bloom.errors import MissingLibraryError

if not all(map(find_spec, ("redis", "msgpack"))):  # an extra: who needs this room learns of it here
    raise MissingLibraryError("A filter in Redis needs the packages redis and msgpack", "redis")
