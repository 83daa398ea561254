"""One crawl: what its requests are, which pages are in flight, and what its engine shows.

``session`` tells what a request is and judges it; ``redirects`` knows chains of redirects;
``in_flight`` knows which pages are in flight; ``items`` writes out what pages gave before they
count as done; ``engine`` holds all that is read of Scrapy's engine; ``report`` writes to stats and
log; ``rules`` reads rules for URLs; ``serialize`` turns requests into bytes; ``lost`` finds what
Scrapy's own scheduler could not store. A :class:`frontier.Frontier` is what the scheduler calls.

This room knows Scrapy, and neither SQLite nor Redis.
"""
