"""Filters at rest for tests of the commands: all that a place holds."""

from __future__ import annotations


def everything(folder):
    """Return path, bytes and times of all that is below a folder.

    But for the index of a log, which SQLite makes anew as it likes.
    """
    return {
        path.relative_to(folder): (
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in folder.rglob("*")
        if not path.name.endswith("-shm")
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
