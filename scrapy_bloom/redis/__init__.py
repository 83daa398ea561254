"""The filter that many workers share: its bits live in Redis.

A check goes down these files. `filter` spreads it over shards. `shard` gives the verdict, and
recovers from faults. Its `ledger` knows the answers that need no call. `calls` numbers each call.
`membership` knows the filter and this worker's registration. `link` makes one round trip. One of
the `scripts` does the work inside Redis, in one step.
"""
