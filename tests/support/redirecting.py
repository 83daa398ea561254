"""A crawl over all shapes of redirects, run as a program: prints pages parsed and stats as JSON.

Takes settings and further requests (pairs of URL and meta) as JSON.

The site stands behind a proxy that plays any host, with TLS, so that its URLs need no port.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import scrapy
from scrapy.crawler import CrawlerProcess

from support.tls import tls_context

COOKIE = "cookie"  # in the place of a redirect: to the same URL, with a cookie set
# From what a page links to, over the redirects, to the page that is to be parsed.
CHAINS = {
    "to itself with a cookie": ["http://site.example/cookie", COOKIE],
    "parameters reordered": [
        "http://site.example/order?b=1&a=2",
        "http://site.example/order?a=2&b=1",
    ],
    "tracking added": ["http://site.example/track", "http://site.example/track?utm_source=x"],
    "slash added": ["http://site.example/slash", "http://site.example/slash/"],
    "slash taken": ["http://site.example/noslash/", "http://site.example/noslash"],
    "http to https": ["http://site.example/tls", "https://site.example/tls"],
    "www added": ["http://site.example/www", "http://www.site.example/www"],
    "port added": ["http://site.example/port", "http://site.example:80/port"],
    "dot taken": ["http://site.example./dot", "http://site.example/dot"],
    "index taken": ["http://site.example/i/index.html", "http://site.example/i/"],
    "there and back": ["http://site.example/there", "http://site.example/back", COOKIE],
    "all of them": [
        "http://site.example/all?b=1&a=2",
        "https://site.example/all?b=1&a=2",
        "https://www.site.example/all?b=1&a=2",
        COOKIE,
        "https://www.site.example/all/?a=2&b=1",
        COOKIE,
        "https://www.site.example/all/?a=2&b=1&utm_source=x",
    ],
    "over another page": [
        "http://site.example/one?gclid=x",
        "http://site.example/login",
        "http://site.example/one",
    ],
}
# Pages that several links lead to.
SHARED = {
    "http://site.example/shared1": "http://site.example/shared/",
    "http://site.example/shared2": "http://site.example/shared/",
}
LINKS = [*(chain[0] for chain in CHAINS.values()), *SHARED, "http://site.example/slash/"]
START = "http://site.example/"


def steps():
    """Return where each URL leads, by URL and number of cookies that are to be there."""
    found = {(url, 0): (target, 0) for url, target in SHARED.items()}
    for chain in CHAINS.values():
        url, cookies = chain[0], 0
        for target in chain[1:]:
            if target == COOKIE:
                found[url, cookies] = (url, cookies + 1)
                cookies += 1
            else:
                found[url, cookies] = (target, cookies)
                url = target
    return found


STEPS = steps()


class Site(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    tls: ssl.SSLContext
    origin = ""

    def do_CONNECT(self):
        self.send_response(200)
        self.end_headers()
        self.connection = self.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)
        self.origin = f"https://{self.path.removesuffix(':443')}"

    def do_GET(self):
        url = self.origin + self.path
        name = "c" + "".join(filter(str.isalpha, url.partition(".example")[2].partition("?")[0]))
        sent = self.headers.get("Cookie", "")
        cookies = int(sent.partition(f"{name}=")[2].partition(";")[0] or 0)
        target, cookies_there = STEPS.get((url, cookies), (None, 0))
        links = LINKS if url == START else []
        body = "".join(f'<a href="{link.replace("&", "&amp;")}">x</a>' for link in links).encode()
        self.send_response(302 if target else 200)
        if target:
            self.send_header("Location", target)
        if cookies_there > cookies:
            self.send_header("Set-Cookie", f"{name}={cookies_there}; Domain=site.example; Path=/")
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class RedirectSpider(scrapy.Spider):
    name = "redirects"
    start_urls = (START,)

    def __init__(self, *args, parsed, more, **kwargs):
        super().__init__(*args, **kwargs)
        self.parsed = parsed
        self.more = more

    def parse(self, response):
        self.parsed[response.url] += 1
        for link in response.css("a"):
            yield response.follow(link)
        if response.url == START:
            for url, meta in self.more:
                yield scrapy.Request(url, meta=meta)


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # who does not find room in it tries again a second later


def main(settings, more):
    Site.tls = tls_context()
    server = Server(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    proxy = f"http://127.0.0.1:{server.server_address[1]}"
    os.environ.update(http_proxy=proxy, https_proxy=proxy, no_proxy="")
    process = CrawlerProcess({"TELNETCONSOLE_ENABLED": False, "LOG_LEVEL": "ERROR", **settings})
    crawler = process.create_crawler(RedirectSpider)
    parsed: Counter[str] = Counter()
    process.crawl(crawler, parsed=parsed, more=more)
    process.start()
    stats = {key: value for key, value in crawler.stats.get_stats().items() if "bloom" in key}
    json.dump({"parsed": parsed, "stats": stats}, sys.stdout)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), json.loads(sys.argv[2]))
