"""What "the same request" means: URLs and rules in, fingerprints out.

``fingerprint`` turns a request into the bytes that stand for its page. ``fast_path`` takes nearly
every URL apart and makes Scrapy's canonical form of it; ``parts`` and w3lib do that for the others.
In between, if one might change the URL, ``pipeline`` takes the ``steps`` that the rules
choose for its host. ``scrapy_form`` makes the bytes.

This room knows Scrapy's requests and w3lib. It reads no settings, opens no file, and knows neither
crawlers nor filters.
"""
