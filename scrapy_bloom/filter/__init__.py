"""Bloom filters: hashing, sizing, growth, and the filter in memory. No Scrapy."""
