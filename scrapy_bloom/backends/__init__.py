"""The backends, a file each: how a filter is opened for a crawl."""
