"""A filter whose false positives are caught: what it calls seen is looked up in an exact list.

What is new to the filter is new, and only noted. So most new pages cost nothing but room on the
disk, and a page that is seen costs one look-up.

With a window each list belongs to one generation of the filter, and is dropped with it, never
later. What the filter still has, and no list, is new.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_bloom.core.growth import generation_life
from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.storage import fields
from scrapy_bloom.storage.exact_file import ExactFile, ExactKey, count_in, write_exact
from scrapy_bloom.storage.files import remove

if TYPE_CHECKING:
    from typing_extensions import Self

    from scrapy_bloom.core.info import FilterInfo

PREFIX: Final = "requests.exact."
"""What the names of the lists in a job directory begin with; a number follows."""

NOTE: Final = "exact"
"""Key of the note that says which lists there are; empty if there are none."""


@dataclass
class Marks:
    """Fingerprints that are in no file yet.

    Attributes:
        since: when the generation began that has them; infinite without a window.
        fingerprints: the fingerprints.
    """

    since: float
    fingerprints: set[bytes] = field(default_factory=set)


@dataclass(eq=False)
class ListFile:
    """A list in a file.

    Attributes:
        since: when the generation began that has its marks; infinite without a window.
        file: the file.
    """

    since: float
    file: ExactFile

    @property
    def number(self) -> int:
        """That in its name: the newer, the higher."""
        return int(self.file.path.name.removeprefix(PREFIX))


class ExactFilter:
    """A :class:`Filter` around a local one, which is not to be used by anybody else.

    :param inner: the filter.

    Attributes:
        inner: the filter. Marks that it has had before are not listed: what matches them is seen.
        false_positives: new fingerprints that the filter called seen, and that were caught.
        recent: marks that are in no file yet, by generation.
        writing: those that are being written to files.
        lists: the files with the others.
    """

    def __init__(self, inner: LocalFilter) -> None:
        self.inner = inner
        self.false_positives = 0
        self.recent: list[Marks] = []
        self.writing: list[Marks] = []
        self.lists: list[ListFile] = []

    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before."""
        if self.inner.add(fingerprint):
            if self._is_listed(fingerprint):
                return True
            self.false_positives += 1
            self.inner.renew(fingerprint)  # what it was taken for may be dropped before it
        self._note(fingerprint)
        return False

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; return for each, in order, whether it was there before."""
        return [self.add(fingerprint) for fingerprint in fingerprints]

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether a page was let through less than `max_age` seconds ago; if not, do so."""
        seen = self.inner.add_aged(fingerprint, max_age)  # which keeps the dates exactly
        if not seen:
            self._note(fingerprint)
        return seen

    def restore(self, fingerprints: Iterable[bytes], since: float | None = None) -> bool:
        """Add marks of an earlier run that are in no file; return False if their time is over.

        :param since: when the generation began that they were added to; None if that is not known.
        """
        fingerprints, newest = list(fingerprints), self.inner.until_now()
        if not self.inner.restore(fingerprints, since):
            return False
        if self.inner.window is None:
            since = inf
        else:
            if self.old and self.old == newest:
                self.inner.old = self.inner.until_now()  # what is old may have another date now
            now = self.inner.now()
            since = now if since is None else min(since, now)
        self._marks_of(since).update(fingerprints)
        return True

    def restore_ages(self, ages: Mapping[bytes, float]) -> None:
        """Take over when an earlier run has let pages through for their age."""
        self.inner.restore_ages(ages)

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

    @property
    def old(self) -> float:
        """What was in the filter before this one came, as :meth:`LocalFilter.until_now` says it."""
        return self.inner.old

    @property
    def since(self) -> float | None:
        """When the generation began that takes items now; None without a window."""
        return self.inner.since

    def info(self) -> FilterInfo:
        """Return the state of the filter, as if it were alone."""
        return self.inner.info()

    def clear(self) -> bool:
        """Forget everything."""
        self.recent, self.writing = [], []
        for one in self.lists:
            one.file.close()
        self.lists = []
        return self.inner.clear()

    def close(self) -> None:
        """Close the files."""
        for one in self.lists:
            one.file.close()
        self.inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ended(self) -> list[ListFile]:
        """Return the lists whose generation has ended; let go of other marks of such ones."""
        now, life = self._moment()
        self.recent = [each for each in self.recent if each.since + life > now]
        return [one for one in self.lists if one.since + life <= now]

    def _note(self, fingerprint: bytes) -> None:
        since = self.inner.since
        self._marks_of(inf if since is None else since).add(fingerprint)

    def _marks_of(self, since: float) -> set[bytes]:
        """Return the marks of a generation that are in no file."""
        if not self.recent or self.recent[-1].since != since:
            known = [each for each in self.recent if each.since == since] or [Marks(since)]
            self.recent = [each for each in self.recent if each.since != since] + known
        return self.recent[-1].fingerprints

    def _is_listed(self, fingerprint: bytes) -> bool:
        now, life = self._moment()
        for each in (*self.recent, *self.writing):
            if fingerprint in each.fingerprints and each.since + life > now:
                return True
        if self.old and self.inner.was_in(fingerprint, self.old):
            return True
        return any(one.since + life > now and fingerprint in one.file for one in self.lists)

    def _moment(self) -> tuple[float, float]:
        """Return the time, and for how many seconds a generation lives; 0 and 0 without a window.

        If the clock went back, what seems to come from the future counts as of now, as in the
        filter.
        """
        window = self.inner.window
        if window is None:
            return 0.0, 0.0
        now = self.inner.now()
        for marks in (*self.recent, *self.writing):
            marks.since = min(marks.since, now)
        for one in self.lists:
            one.since = min(one.since, now)
        return now, generation_life(window)


@dataclass(frozen=True)
class Noted:
    """The lists of a job, as they are noted in the store of its requests.

    Attributes:
        old: marks that are in no list, as for the filter; None for all that the filter has.
        lists: the number of each list, and when its generation began.
        window: the window that the dates belong to; None without one.
    """

    old: float | None
    lists: Sequence[tuple[int, float]]
    window: float | None

    @classmethod
    def read(cls, text: str) -> Noted:
        """Return what a note says.

        :raises ValueError: if it makes no sense.
        """
        noted = fields.read_object(text.encode())
        try:
            return cls(
                _number(noted["old"]),
                [
                    (int(number), inf if since is None else float(since))
                    for number, since in noted["lists"]
                ],
                _number(noted["window"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(repr(error)) from error

    def __str__(self) -> str:
        """Return the note."""
        lists = [(number, None if since == inf else since) for number, since in self.lists]
        old = None if self.old is None else float(self.old)
        return json.dumps({"window": self.window, "old": old, "lists": lists})


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


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
        self._open(self._filter.inner.until_now(), [])

    def resume(self, noted: str) -> None:
        """Go on with the lists that a note names.

        :raises ValueError: if the note makes no sense.
        :raises StateError: if a list is missing, or cannot be used. All stay as they are.
        """
        inner, found = self._filter.inner, Noted.read(noted)
        self._open(inner.until_now() if found.old is None else found.old, found.lists)

    def note(self) -> str:
        """Return what :meth:`resume` needs while the filter stays as it was stored."""
        return note_of(self._filter, self._filter.inner.old_as_stored)

    def freeze(self) -> FrozenLists:
        """Return what is to be written now; the crawl may go on meanwhile.

        What the last one could not write is in it.
        """
        filter_ = self._filter
        filter_.recent += filter_.writing
        ended = filter_.ended()
        by_date: dict[float, Marks] = {}
        for each in filter_.recent:
            by_date.setdefault(each.since, Marks(each.since)).fingerprints.update(each.fingerprints)
        filter_.writing, filter_.recent = [*by_date.values()], []
        number = max([0, *(one.number for one in filter_.lists)])
        parts = []
        for each in filter_.writing:
            number += 1
            merged, size = [], len(each.fingerprints)
            same = [one for one in filter_.lists if one.since == each.since]
            for one in sorted(same, key=lambda one: -one.number):
                if one.file.count > 2 * size:
                    break
                size += one.file.count
                merged.append(one)
            parts.append(Part(each, self._folder / f"{PREFIX}{number}", merged))
        return FrozenLists(filter_, self._key, parts, ended)

    def _open(self, old: float, lists: Collection[tuple[int, float]]) -> None:
        filter_ = self._filter
        filter_.inner.begin_after(old)
        try:
            for number, since in lists:
                file = ExactFile(self._folder / f"{PREFIX}{number}", self._key)
                filter_.lists.append(ListFile(since, file))
        except BaseException:
            for one in filter_.lists:
                one.file.close()
            raise
        remove_lists(self._folder, [one.file.path for one in filter_.lists])


@dataclass(frozen=True)
class Part:
    """What becomes one list.

    Attributes:
        marks: those that are in no file yet.
        path: where they go.
        merged: lists of the same generation that go there, too.
    """

    marks: Marks
    path: Path
    merged: Sequence[ListFile]


class FrozenLists:
    """Lists on their way to the disk, in steps; :meth:`write` may be called in any thread."""

    def __init__(
        self,
        filter: ExactFilter,  # noqa: A002 - that is what it is
        key: ExactKey,
        parts: Sequence[Part],
        ended: Sequence[ListFile],
    ) -> None:
        self._filter = filter
        self._key = key
        self._parts = parts
        self._new: list[ListFile] = []
        self._gone = [*ended, *(one for part in parts for one in part.merged)]

    def write(self) -> None:
        """Write the lists.

        :raises OSError: if that cannot be.
        :raises StateError: if one of those that go into them is damaged.
        """
        try:
            for part in self._parts:
                merged = [one.file.path for one in part.merged]
                write_exact(part.path, self._key, part.marks.fingerprints, merged)
                self._new.append(ListFile(part.marks.since, ExactFile(part.path, self._key)))
        except BaseException:
            self.drop()
            raise

    def use(self) -> str:
        """Look things up in the new lists from now on; return the note to be committed."""
        filter_ = self._filter
        for part, one in zip(self._parts, self._new, strict=True):
            one.since = part.marks.since  # the clock may have gone back meanwhile
        for one in self._gone:
            one.file.close()
        kept = [one for one in filter_.lists if one not in self._gone]
        filter_.lists = sorted([*kept, *self._new], key=lambda one: -one.file.count)
        filter_.writing = []
        return note_of(filter_, filter_.old)

    def drop(self) -> None:
        """Let go of the new lists, which nobody uses. Their files stay until the next start."""
        for one in self._new:
            one.file.close()

    def tidy_up(self) -> None:
        """Remove lists that are not needed any more. To be called once the note is committed."""
        for one in self._gone:
            remove(one.file.path)


def note_of(filter_: ExactFilter, old: float) -> str:
    """Return what :meth:`ExactLists.resume` needs."""
    lists = [(one.number, one.since) for one in filter_.lists]
    return str(Noted(old, lists, filter_.inner.window))


def remove_lists(folder: Path, keep: Collection[Path] = ()) -> None:
    """Remove the lists in a job directory, but those to keep."""
    for path in folder.glob(f"{PREFIX}*"):
        if path not in keep:
            remove(path)


def listed(folder: Path, noted: str, now: float) -> int:
    """Return how many fingerprints are in the lists that a note names and that are not over.

    :raises ValueError: if it makes no sense.
    """
    found = Noted.read(noted)
    end = -inf if found.window is None else now - generation_life(found.window)
    lists = [number for number, since in found.lists if since > end]
    return sum(count_in(folder / f"{PREFIX}{number}") for number in lists)


def check_lists(folder: Path, noted: str, key: ExactKey) -> int:
    """Read the heads of the lists that a note names; return how many fingerprints they have.

    :raises StateError: if one is missing, or cannot be used.
    """
    count = 0
    for number, _ in Noted.read(noted).lists:
        with ExactFile(folder / f"{PREFIX}{number}", key) as file:
            count += file.count
    return count


def with_old_slices(noted: str, slices: int) -> str:
    """Return a note by which all that a filter of so many slices has counts as seen unlooked."""
    found = Noted.read(noted)
    return str(Noted(slices if found.window is None else None, found.lists, found.window))
