"""Filters at rest for tests of the tools: places for them, and all that a place holds."""

from __future__ import annotations

from scrapy_bloom import tools
from scrapy_bloom.core.numbers import NumbersSlice


def project(spider="books", **settings):
    """Return a project with these settings, apart from any in the working directory."""
    from scrapy.settings import Settings

    return tools.Project(Settings(settings), spider)


def everything(folder):
    """Return path, bytes and times of all that is below a folder."""
    return {
        path.relative_to(folder): (
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in folder.rglob("*")
    }


def everything_in(server):
    """Return all keys of a server, and what they hold.

    By what it is, not as DUMP gives it: there the order of a hash may change when somebody looks.
    """
    client = server.client()
    names = list(client.scan_iter(count=1000))
    asked = client.pipeline(transaction=False)  # there are thousands of keys
    read = {
        b"hash": asked.hgetall,
        b"string": asked.get,
        b"set": asked.smembers,
        b"zset": lambda name: asked.zrange(name, 0, -1, withscores=True),
        b"list": lambda name: asked.lrange(name, 0, -1),
    }
    for name in names:
        asked.type(name)
    for name, kind in zip(names, asked.execute(), strict=True):
        read[kind](name)
    return dict(zip(names, asked.execute(), strict=True))


def bits_of(target):
    """Return secret, geometry and bits of a filter, as bytes; or numbers."""
    return [
        (state.secret, [(slice_.spec, _bytes_of(slice_)) for slice_ in state.slices])
        for state in tools.target_of(target).read().shards
    ]


def _bytes_of(slice_):
    if isinstance(slice_, NumbersSlice):
        return {bucket: numbers.tobytes() for bucket, numbers in slice_.buckets.items()}
    return b"".join(block.tobytes() for block in slice_.blocks)
