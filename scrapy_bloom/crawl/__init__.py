"""One crawl: what its requests are, which pages are in flight, and what its engine shows.

``session`` tells what a request is and judges it; ``redirects`` knows chains of redirects;
``in_flight`` knows which pages are in flight; ``items`` writes out what pages gave before they
count as done; ``engine`` holds all that is read of Scrapy's engine; ``report`` writes to stats and
log; ``serialize`` turns requests into bytes; ``schedulers`` knows what those of others do not tell.

This room knows Scrapy, and neither SQLite nor Redis.
"""
