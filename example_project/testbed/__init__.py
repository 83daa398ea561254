"""What demos, tests and benchmarks run on: a site that counts its pages, and a Redis server."""
