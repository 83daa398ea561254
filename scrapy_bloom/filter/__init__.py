"""Bloom filters: hashing, sizing, growth, and the filter in memory. Independent of Scrapy."""
