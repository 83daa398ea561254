"""A filter whose false positives are caught: what it calls seen is looked up in an exact list.

What is new to the filter is new, and only noted. So most new pages cost nothing but room on the
disk, and a page that is seen costs one look-up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.layers.around import FilterAround
from scrapy_bloom.storage.exact_file import ExactFile, ExactKey, count_in, write_exact
from scrapy_bloom.storage.files import remove

PREFIX: Final = "requests.exact."
"""What the names of the lists in a job directory begin with; a number follows."""

NOTE: Final = "exact"
"""Key of the note that says which lists there are; empty if there are none."""


class ExactFilter(FilterAround):
    """A :class:`Filter` around a local one, which is not to be used by anybody else.

    :param inner: the filter.

    Attributes:
        inner: the filter.
        false_positives: new fingerprints that the filter called seen, and that were caught.
        old: how many slices of the filter have marks that are not listed: what they have is seen.
        recent: fingerprints that are in no file yet.
        lists: the files with the others.
    """

    def __init__(self, inner: LocalFilter) -> None:
        super().__init__(inner)
        self.false_positives = 0
        self.old = 0
        self.recent: set[bytes] = set()
        self.lists: list[ExactFile] = []

    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before."""
        if self.inner.add(fingerprint):
            if self._is_listed(fingerprint):
                return True
            self.false_positives += 1
        self.recent.add(fingerprint)
        return False

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether a page was let through less than `max_age` seconds ago; if not, do so."""
        seen = self.inner.add_aged(fingerprint, max_age)  # which keeps the dates exactly
        if not seen:
            self.recent.add(fingerprint)
        return seen

    def restore(
        self,
        fingerprints: Iterable[bytes],
        since: float | None = None,  # noqa: ARG002 - there is no window
    ) -> None:
        """Add marks of an earlier run that are in no file."""
        fingerprints = list(fingerprints)
        self.inner.add_many(fingerprints)
        self.recent.update(fingerprints)

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether the fingerprint was added. Changes nothing."""
        return fingerprint in self.inner and self._is_listed(fingerprint)

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added. Changes nothing."""
        return [fingerprint in self for fingerprint in fingerprints]

    def forget(self, fingerprint: bytes) -> bool:
        """Make one fingerprint new once more; return whether it was there."""
        return fingerprint in self and self.inner.forget(fingerprint)

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make a batch new once more; return for each, in order, whether it was there."""
        return [self.forget(fingerprint) for fingerprint in fingerprints]

    def clear(self) -> bool:
        """Forget everything."""
        self.recent.clear()
        for one in self.lists:
            one.close()
        self.lists = []
        self.old = 0
        return self.inner.clear()

    def close(self) -> None:
        """Close the files."""
        for one in self.lists:
            one.close()
        super().close()

    def _is_listed(self, fingerprint: bytes) -> bool:
        if fingerprint in self.recent:
            return True
        if self.old and self.inner.was_in(fingerprint, self.old):
            return True
        return any(fingerprint in one for one in self.lists)


class ExactLists:
    """The files of an :class:`ExactFilter` in a job directory.

    :param folder: the job directory.
    :param filter: the filter.
    """

    def __init__(self, folder: Path, filter: ExactFilter) -> None:  # noqa: A002 - that is what it is
        self._folder = folder
        self._filter = filter
        state = filter.inner.state()
        self._key = ExactKey(state.secret, digests=state.digests)

    def begin(self) -> None:
        """Begin with a filter that may have marks already: those count as seen, unlisted."""
        self._open(self._filter.inner.marked_slices(), [])

    def resume(self, noted: str) -> None:
        """Go on with the lists that a note names.

        :raises ValueError: if the note makes no sense.
        :raises StateError: if a list is missing, or cannot be used. All stay as they are.
        """
        old, *numbers = map(int, noted.split())
        self._open(old, numbers)

    def note(self) -> str:
        """Return what :meth:`resume` needs."""
        return _note(self._filter.old, [self._number(one.path) for one in self._filter.lists])

    def freeze(self) -> FrozenLists:
        """Return what is to be written now; the crawl may go on meanwhile."""
        recent = frozenset(self._filter.recent)
        kept, merged, size = list(self._filter.lists), [], len(recent)
        by_age = sorted(kept, key=lambda one: self._number(one.path))
        while by_age and by_age[-1].count <= 2 * size:
            size += by_age[-1].count
            merged.append(by_age.pop())
        newest = max([0, *(self._number(one.path) for one in kept)])
        path = self._folder / f"{PREFIX}{newest + 1}"
        return FrozenLists(self._filter, self._key, path, recent, merged)

    def _open(self, old: int, numbers: Collection[int]) -> None:
        filter_ = self._filter
        filter_.old = old
        filter_.inner.begin_slice(old)
        try:
            for number in numbers:
                filter_.lists.append(ExactFile(self._folder / f"{PREFIX}{number}", self._key))
        except BaseException:
            filter_.close()
            raise
        # The largest one first: what is seen is most likely in it.
        filter_.lists.sort(key=lambda one: -one.count)
        remove_lists(self._folder, keep=[one.path for one in filter_.lists])

    @staticmethod
    def _number(path: Path) -> int:
        return int(path.name.removeprefix(PREFIX))


class FrozenLists:
    """A list on its way to the disk, in steps; :meth:`write` may be called in any thread."""

    def __init__(
        self,
        filter: ExactFilter,  # noqa: A002 - that is what it is
        key: ExactKey,
        path: Path,
        recent: frozenset[bytes],
        merged: list[ExactFile],
    ) -> None:
        self._filter = filter
        self._key = key
        self._path = path
        self._recent = recent
        self._merged = merged
        self._new: ExactFile | None = None

    def write(self) -> None:
        """Write the list.

        :raises OSError: if that cannot be.
        :raises StateError: if one of those that go into it is damaged.
        """
        if self._recent:
            write_exact(self._path, self._key, self._recent, [one.path for one in self._merged])
            self._new = ExactFile(self._path, self._key)

    def use(self) -> str:
        """Look things up in the new list from now on; return the note to be committed."""
        filter_ = self._filter
        if self._new is not None:
            kept = [one for one in filter_.lists if one not in self._merged]
            filter_.lists = sorted([*kept, self._new], key=lambda one: -one.count)
            filter_.recent -= self._recent
        numbers = [int(one.path.name.removeprefix(PREFIX)) for one in filter_.lists]
        return _note(filter_.old, numbers)

    def drop(self) -> None:
        """Let go of the new list, which nobody uses. Its file stays until the next start."""
        if self._new is not None:
            self._new.close()

    def tidy_up(self) -> None:
        """Remove the lists that are in the new one. To be called when the note is committed."""
        if self._new is not None:
            for one in self._merged:
                one.close()
                remove(one.path)


def remove_lists(folder: Path, keep: Collection[Path] = ()) -> None:
    """Remove the lists in a job directory, but those to keep."""
    for path in folder.glob(f"{PREFIX}*"):
        if path not in keep:
            remove(path)


def listed(folder: Path, noted: str) -> int:
    """Return how many fingerprints are in the lists that a note names."""
    return sum(count_in(folder / f"{PREFIX}{number}") for number in noted.split()[1:])


def with_old_slices(noted: str, slices: int) -> str:
    """Return a note by which all of so many slices count as seen without a look."""
    return " ".join([str(slices), *noted.split()[1:]])


def _note(old: int, numbers: Iterable[int]) -> str:
    return " ".join(map(str, [old, *numbers]))
