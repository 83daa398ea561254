"""A disk that remembers in which order it was written to and synced, and may lose its power."""

import random
from pathlib import Path

from support import vfs

SECTOR = 512
"""A disk writes this much or nothing."""


class Recorder:
    """Records what is done to files, by SQLite and by `Path.replace`.

    It must be made before the files are opened.

    :param patch: a monkeypatch.

    Attributes:
        steps: what was done, in order: a name, and what it was done with.
    """

    def __init__(self, patch):
        self.steps, replace = [], Path.replace

        def replacing(path, target):
            self.steps.append(("renamed", str(path), str(target)))
            return replace(path, target)

        vfs.install()
        patch.setattr(vfs, "tell", lambda *step: self.steps.append(step))
        patch.setattr(Path, "replace", replacing)


class _File:
    """What of a file is surely on the disk, and what was done to it since."""

    def __init__(self):
        self.durable, self.pending = bytearray(), []


class Disk:
    """What is on a disk after the steps that were done, as far as that is certain.

    Names are created, renamed and deleted in this order on the disk, too, as a journal has them;
    what is written to files reaches it in any order, by the sector, until a sync.
    """

    def __init__(self):
        self._names, self._durable_names, self._changes = {}, {}, []

    def do(self, step, path, *what):
        if step == "written":
            self._names[path].pending.append(what)
        elif step == "truncated":
            self._names[path].pending.append((*what, None))
        elif step == "synced":
            self._sync(self._names[path])
        else:
            change = step, path, *([_File()] if step == "created" else what)
            self._changes.append(change)
            _change(self._names, *change)

    def _sync(self, file):
        for change in file.pending:
            _apply(file.durable, *change)
        file.pending = []
        if file not in self._durable_names.values():  # SQLite syncs the folder of a new file
            for change in self._changes:
                _change(self._durable_names, *change)
            self._changes = []

    def after_a_kill(self):
        return {path: _contents(file, lambda _: True) for path, file in self._names.items()}

    def after_a_power_failure(self, seed):
        """Return what the contents of all files may be."""
        dice = random.Random(seed)
        names = dict(self._durable_names)
        for change in self._changes[: dice.randint(0, len(self._changes))]:
            _change(names, *change)
        # Much, little or half of what was not synced.
        share = dice.choice([0, 0.05, 0.5, 0.95, 1])
        return {
            path: _contents(file, lambda _: dice.random() < share) for path, file in names.items()
        }


def _change(names, step, path, other=None):
    if step == "created":
        names[path] = other
    elif step == "deleted":
        del names[path]
    else:
        names[other] = names.pop(path)


def _contents(file, reaches_the_disk):
    content = bytearray(file.durable)
    for offset, data in file.pending:
        if data is None:
            if reaches_the_disk(offset):
                _apply(content, offset, data)
            continue
        start = 0
        while start < len(data):  # up to where the next sector begins
            end = min(len(data), start + SECTOR - (offset + start) % SECTOR)
            if reaches_the_disk(offset + start):
                _apply(content, offset + start, data[start:end])
            start = end
    return bytes(content)


def _apply(content, offset, data):
    if data is None:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
        return
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data
