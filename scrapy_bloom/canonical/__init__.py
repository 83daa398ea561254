"""What "the same request" means: URLs in canonical form, requests as fingerprints.

The way goes from `fingerprint` (a request) over `profile` (what holds for its host) to `steps` (a
URL in `parts`); `plain` and `identical` are the short cut that most links take. This room knows
Scrapy and w3lib. It does not know of filters.
"""
