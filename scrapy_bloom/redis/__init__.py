"""The filter that many workers share: its bits live in Redis.

A check goes from `filter` (which part, what is known already) to `shard` (one part: sequence
numbers, replay, faults) to `link` (one round trip) to a script of `scripts` (all of it at once).
"""
