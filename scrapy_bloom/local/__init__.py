"""A crawl in one SQLite file of its job directory."""
