"""The filter of one crawl, as the doors use it: opened from settings, asked, told about, closed."""
