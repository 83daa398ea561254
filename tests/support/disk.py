"""A disk that remembers in which order it was written to and synced, and may lose its power."""

import random
from pathlib import Path

from support import vfs

SECTOR = 512
"""A disk writes this much or nothing."""


class Recorder:
    """Records what is done to files in a folder, by SQLite and by `pathlib`.

    As a context manager. It must be entered before the files are opened.

    :param patch: a monkeypatch.

    Attributes:
        steps: what was done, in order: a name, and what it was done with.
    """

    def __init__(self, patch):
        self.steps = []
        vfs.install()
        for name in ("created", "written", "truncated", "synced", "deleted"):
            patch.setattr(vfs, name, self._recording(name))
        replace, unlink, touch = Path.replace, Path.unlink, Path.touch

        def replacing(path, target):
            self.steps.append(("renamed", str(path), str(target)))
            return replace(path, target)

        def unlinking(path, *, missing_ok=False):
            if path.exists():
                self.steps.append(("deleted", str(path)))
            return unlink(path, missing_ok=missing_ok)

        def touching(path, *arguments, **keywords):
            if not path.exists():
                self.steps.append(("created", str(path)))
            return touch(path, *arguments, **keywords)

        for name, method in ("replace", replacing), ("unlink", unlinking), ("touch", touching):
            patch.setattr(Path, name, method)

    def _recording(self, name):
        return lambda *arguments: self.steps.append((name, *arguments))


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
        self._names, self._changed = {}, []
        self._durable_names = {}

    def do(self, step, *arguments):
        """Do a step."""
        getattr(self, f"_{step}")(*arguments)

    def _created(self, path):
        new = _File()
        self._change(lambda names: names.update({path: new}))

    def _deleted(self, path):
        self._change(lambda names: names.pop(path))

    def _renamed(self, path, target):
        self._change(lambda names: names.update({target: names.pop(path)}))

    def _change(self, change):
        change(self._names)
        self._changed.append(change)

    def _written(self, path, offset, data):
        self._names[path].pending.append((offset, data))

    def _truncated(self, path, size):
        self._names[path].pending.append((size, None))

    def _synced(self, path):
        file = self._names[path]
        for change in file.pending:
            _apply(file.durable, *change)
        file.pending = []
        if file not in self._durable_names.values():  # SQLite syncs the folder of a new file
            self._persist(len(self._changed))

    def _persist(self, changes):
        for change in self._changed[:changes]:
            change(self._durable_names)
        del self._changed[:changes]

    def after_a_kill(self):
        """Return the contents of all files, by path."""
        return {path: _contents(file, lambda _: True) for path, file in self._names.items()}

    def after_a_power_failure(self, seed):
        """Return what the contents of all files may be."""
        dice = random.Random(seed)
        names = dict(self._durable_names)
        for change in self._changed[: dice.randint(0, len(self._changed))]:
            change(names)
        # Much, little or half of what was not synced.
        share = dice.choice([0, 0.05, 0.5, 0.95, 1])
        return {
            path: _contents(file, lambda _: dice.random() < share) for path, file in names.items()
        }


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
