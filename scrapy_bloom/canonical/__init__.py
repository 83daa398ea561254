"""What "the same URL" means: URLs and rules in, canonical URLs and Scrapy's bytes out.

``fast_path`` takes nearly every URL apart and makes Scrapy's canonical form of it; ``parts`` and
w3lib do that for the others. In between, if one might change the URL, ``pipeline`` takes the
``steps`` that the rules choose for its host. ``scrapy_form`` makes the bytes of a request.

This room knows Scrapy's requests and w3lib. It reads no settings, opens no file, and knows neither
crawlers nor filters.
"""
