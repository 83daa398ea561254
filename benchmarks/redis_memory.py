"""What a million URLs take in Redis, by MEMORY USAGE: ours at several error rates, and a set."""

from __future__ import annotations

import argparse
from hashlib import sha1

from example.localredis import LocalRedis

from harness import setting, show
from scrapy_bloom import RedisFilter


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--urls", type=int, default=1_000_000)
    arguments = parser.parse_args()
    print(setting("scrapy-bloom", "redis"))
    known = [sha1(b"%d" % i, usedforsecurity=False).digest() for i in range(arguments.urls)]
    rows = []
    with LocalRedis() as server:
        client = server.client()

        def usage(pattern: str) -> float:
            names = list(client.scan_iter(pattern))
            return sum(client.memory_usage(name, samples=0) or 0 for name in names) / 1e6

        for capacity in (arguments.urls, arguments.urls // 10):
            for rate in (1e-4, 1e-6):
                key = f"bloom-{capacity}-{rate:g}"
                seen = RedisFilter.from_url(
                    server.url, key=key, capacity=capacity, error_rate=rate, cache=0
                )
                lost = 0
                for start in range(0, len(known), 1000):
                    lost += sum(seen.add_many(known[start : start + 1000]))
                info = seen.info()
                rows.append(
                    (
                        f"ours at {rate:g}, capacity {capacity:,}",
                        f"{usage(key + '*') / arguments.urls * 1e6:.2f}",
                        f"{info.slices}",
                        f"{lost}",
                    )
                )
                seen.close()
        for start in range(0, len(known), 10_000):
            client.sadd("set", *(each.hex() for each in known[start : start + 10_000]))
        rows.append(("SADD", f"{usage('set') / arguments.urls * 1e6:.2f}", "", "0"))
    show(f"{arguments.urls:,} URLs", ("", "MB per million URLs", "slices", "called seen"), rows)


if __name__ == "__main__":
    main()
