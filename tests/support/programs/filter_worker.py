"""One worker of a filter in Redis, as a program: python filter_worker.py URL KEY.

It does what it is told on its standard input, one word a line, and prints what came of it:
``add`` something, ``clear`` or ``close``. Of an error it prints the name.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from support import pace

from scrapy_bloom import BloomError, RedisFilter


def main():
    pace.follow()
    url, key = sys.argv[1:]
    seen = RedisFilter.from_url(url, key=key, capacity=10_000, error_rate=1e-9)
    print("open", flush=True)
    for line in sys.stdin:
        word = line.strip()
        try:
            answer = seen.add(os.urandom(20)) if word == "add" else getattr(seen, word)()
        except BloomError as error:
            answer = type(error).__name__
        print(answer, flush=True)


if __name__ == "__main__":
    main()
