"""Stores of requests for tests: how they are made and filled, with numbers for requests."""

from scrapy_bloom.frontier import file
from scrapy_bloom.frontier.buckets import Bodies, BucketMaker, Lifo
from scrapy_bloom.frontier.store import Store

NAME = "requests.sqlite"


class Texts(Bodies):
    """Takes numbers for requests, and lists what was taken."""

    def __init__(self):
        self.taken = {}

    def encode(self, request):
        return b"%d" % request

    def take(self, row, body):
        self.taken[int(body)] = row
        return int(body)

    def slot(self, request):  # noqa: ARG002 - a number
        return "slot"


def open_store(folder):
    path = folder / NAME
    if not path.exists() and not path.is_symlink():
        file.create(path, lambda _: None)
    return Store(path)


def fill(store, count, path="0"):
    queue = BucketMaker(store, "/job", Lifo, Texts()).from_crawler(None, f"/job/{path}")
    for number in range(count):
        queue.push(number)
    store.commit()
    return queue
