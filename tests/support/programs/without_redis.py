"""Open a filter in Redis where the client library is not installed."""

import sys

sys.modules["redis"] = None
import scrapy_bloom

scrapy_bloom.RedisFilter.from_url("redis://localhost", key="key")
