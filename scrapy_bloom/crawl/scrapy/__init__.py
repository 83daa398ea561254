"""All that is private to Scrapy, or about to change there.

``engine`` reads the engine and the scraper, ``crawler`` refuses and ends crawls, ``downloads`` is
the slots of the downloader and what Scrapy keeps by slot, ``feeds`` the files of feeds, and
``loop`` runs code later or in a thread.
"""
