"""Settings of the example: one line for scrapy-bloom, the rest is Scrapy's own."""

BOT_NAME = "example"
SPIDER_MODULES = ["example.spiders"]

# Filter and scheduler; this line is all that they need. With a JOBDIR the crawl may be killed at
# any moment.
ADDONS = {"scrapy_bloom.Addon": 500}

# With BLOOM_REDIS_URL instead, any number of workers share one crawl, and each may be killed.

# URLs the filter holds before it grows for the first time. The default is a million; the local
# site has a few thousand, and a filter of their size makes the comparison in the demo a fair one.
BLOOM_CAPACITY = 10_000

# With BLOOM_CANONICAL set to "usual" links that differ only in tracking parameters are one page,
# too. `scrapy bloom canon URL URL` shows what that means for two links.

# Be a good guest on a real site.
ROBOTSTXT_OBEY = True
DOWNLOAD_DELAY = 0.5
CONCURRENT_REQUESTS_PER_DOMAIN = 2
# The local site is our own: no need to wait for it.
DOWNLOAD_SLOTS = {"127.0.0.1": {"concurrency": 16, "delay": 0}}

LOG_LEVEL = "INFO"
