"""A crawl stored in one SQLite file in its job directory.

A request goes from ``backend`` through Scrapy's priority queue (``queue``) to a row of ``store``,
which goes when the page is done.

Seven ideas: a row is a request that is not done; a commit is one transaction; marks go to a
journal, and a pass writes the blocks they are in (``marks``); what waits for a time is a row in a
queue of its own (``later``); what has failed is on a list (``failed``); a start request that is not
filtered is one page (``starts``); a job has a lock, an owner and a kind (``job``). ``log`` copies
SQLite's log into the file; ``plain`` and ``scrapys`` are for jobs whose requests Scrapy stores.
"""
