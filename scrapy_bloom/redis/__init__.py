"""The filter that many workers share: its bits live in Redis.

A check goes down these files: `filter` spreads it over shards; `shard` gives the verdict and
recovers; its `ledger` knows what need not be asked; `calls` numbers what is asked; `membership`
says which filter and which worker it is about; `link` makes one round trip; and one of the
`scripts` does all of it at once inside Redis.
"""
