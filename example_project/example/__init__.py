"""A small Scrapy project that removes duplicates with scrapy-bloom."""
