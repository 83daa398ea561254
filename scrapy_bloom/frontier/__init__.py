"""Requests and marks of a crawl kept together, so that neither outlives the other."""
