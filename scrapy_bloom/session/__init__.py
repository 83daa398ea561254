"""The filter of one crawl, as Scrapy and the commands use it."""
