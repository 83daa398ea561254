"""One crawl: identifying its requests, tracking pages in flight, and access to its engine.

``frontier`` is its law: when a page is done. ``backend`` is the port to what keeps requests and
marks. ``identity`` is what a request is, ``history`` what it has behind it, ``judge`` what is said
about it (``at_once`` for another scheduler), and ``whose`` whose crawl it is; ``ledger`` orders
pages behind what they have asked; ``withheld`` keeps marks of what is in memory from the next run;
``recent`` remembers marks of this run; ``in_flight`` tracks the pages in flight, ``outcomes`` is
how each ends, ``failed`` a request that has failed, and ``account`` what has become of all;
``later`` keeps what must wait, and ``pace`` is how a slot is spaced; ``meta`` knows the keys that
users may set, and ``orders`` the signals by which they leave hosts alone and have pages forgotten;
``items`` writes out a page's items before the page counts as done, and ``cut_feeds`` mends feeds
that a kill has cut; ``scrapy`` has all that is private to Scrapy; ``report`` writes stats and log
messages; ``serialize`` turns requests into bytes, and ``reading`` those that a stranger may have
written into requests; ``other_schedulers`` covers what other schedulers do not report.

This package knows Scrapy, but talks to neither SQLite nor Redis.
"""
