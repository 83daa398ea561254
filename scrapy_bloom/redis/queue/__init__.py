"""The request queue beside the filter in Redis: any number of workers push and take.

A call goes down these files. `shared` spreads it over shards. `shard` notices what the server has
lost, and knows by its `holdings` what the worker has. `calls` numbers each call. `register` keeps
the lease of the worker and watches the others. `member` reads and writes a request. One of the
scripts does the work inside Redis, in one step. `base` says what all of it promises.
"""
