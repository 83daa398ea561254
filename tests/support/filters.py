"""Filters at rest for tests of the commands: all that a place holds, and what it says of pages."""

import json


def seen(bloom, target, known):
    """Return for each of some fingerprints whether `why` knows it."""
    answers = bloom(f"why {target} - --json", stdin=hexadecimal(known))[1]
    return [json.loads(line)["is"] != "not seen" for line in answers]


def hexadecimal(known):
    return "\n".join(one.hex() for one in known).encode()


def contents(folder):
    """Return all that files have. Locks leave their files, and kills leave copies."""
    left = (".lock", ".copy")
    return {path: found[1] for path, found in everything(folder).items() if path.suffix not in left}


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


def everything_in(server, key=""):
    """Return all keys of a server that begin with a name, and what they hold.

    By what it is, not as DUMP gives it: there the order of a hash may change when somebody looks.
    """
    client = server.client()
    names = list(client.scan_iter(f"{key}*", count=1000))
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
