"""What "the same request" means: URLs and rules in, fingerprints out.

``fingerprint`` turns a request into the bytes that stand for its page. It asks ``pipeline`` for the
steps that the rules choose for the URL's host, and gives the URL, taken apart by ``parts``, to the
functions in ``steps``. Then ``scrapy_form`` makes Scrapy's own fingerprint of the result.
``fast_path`` recognizes the URLs, most links, that need none of this work.

This room knows Scrapy's requests and w3lib. It reads no settings, opens no file, and knows neither
crawlers nor filters.
"""
