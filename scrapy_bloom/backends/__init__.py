"""The backends: how a filter is opened for a crawl."""
