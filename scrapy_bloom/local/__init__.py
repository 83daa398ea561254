"""A crawl kept in one SQLite file in its job directory."""
