"""Filters and requests that any number of workers share in Redis.

A request goes from ``frontier`` to ``queue``, ``shard`` and ``lua/call.lua``. ``filter`` and
``plain`` are for crawls with other schedulers, and ``reader`` only reads.

Six ideas: a header, a call, a lease, a surprise, what a worker knows, shards. Most have a file of
their own: `lua/_common.lua` has the header, `lua/call.lua` the call, `worker` the lease, and
`shard` one worker at one key and its surprises; `filter` and `queue` build on these.
"""
