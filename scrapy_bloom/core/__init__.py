"""Bits in memory: hashing, sizing, growth. No I/O and no Scrapy."""
