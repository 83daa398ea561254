"""One crawl: what its requests are, what becomes of them, and when a page is done.

First read ``page``, ``frontier`` and ``backend``: how a page ends, when it is released, and what
keeps it until then. What the words mean:

- *taken*: out of its queue and not done; *in flight* while the engine has it.
- *origin*: the page that yielded a request.
- *way*: marks of where the redirects of a page led, see ``redirects``.
- *roots*: stored pages that led to a request which is only in memory.
- *exchange*: a commit of a job, or a call to Redis. What it has not written or sent yet is lost in
  a kill.

The rooms:

- The port: ``backend`` is what stores marks and requests, whatever that is.
- The law: ``frontier`` says when a page is done, and ``ledger`` in which order.
- A mark: ``identity`` says which page a request is, and ``history`` what led to it.
- A verdict: ``judge`` says whether a page was seen, and which pages are forgotten.
- How a page ends: the table in ``page``; ``waits`` has what else it waits for, ``in_flight`` has
  those that were sent, and ``memory`` those that cannot be stored.
- Outcomes: ``outcomes``; ``failed`` is what is listed of a page that failed, and ``account`` what
  has become of all.
- Redirects: ``redirects`` says what becomes of them, and has those that were dropped as seen.
- Items: ``items`` hands them over before their page is done.
- Later: ``later`` keeps what must wait, and knows which hosts are paused.
- Bytes: ``serialize`` writes and reads requests of a job directory. ``whose`` is which spider wrote
  them.
- What is reported: ``report`` writes stats and log.

``scrapy`` has all that is private to Scrapy, and ``other_schedulers`` covers what other schedulers
do not report. This package knows Scrapy, but talks to neither SQLite nor Redis.
"""
