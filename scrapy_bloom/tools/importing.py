"""Fills a filter from files: URLs, fingerprints, Scrapy's own filter, another filter of ours."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final, Literal, cast

from scrapy import Request

from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter
from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.frontier.waiting import read_plain
from scrapy_bloom.options import CAPACITY, ERROR_RATE
from scrapy_bloom.storage import scrapy_queue, seen_file
from scrapy_bloom.storage.frame import MAGIC
from scrapy_bloom.tools.contents import Contents
from scrapy_bloom.tools.lines import BadLine, Kind, Lines
from scrapy_bloom.tools.local_target import FileTarget, JobTarget, LocalAdder
from scrapy_bloom.tools.moving import copy, merge
from scrapy_bloom.tools.progress import Progress, Told, silent
from scrapy_bloom.tools.project import Project
from scrapy_bloom.tools.resolve import SCHEMES, Where, target_of
from scrapy_bloom.tools.target import Adder, Target

Form = Literal["auto", "urls", "fingerprints", "seen", "filter"]
"""What a file holds; ``auto`` looks at it."""

FORMS: Final = ("auto", "urls", "fingerprints", "seen", "filter")

_AT_ONCE: Final = 10_000  # fingerprints


@dataclass(frozen=True)
class Imported:
    """What came of an import.

    Attributes:
        target: where the filter is.
        made: whether it was made.
        read: how many lines or fingerprints were read.
        new: how many of them the filter did not have.
        items: how many items it has now; None if the target tells that only when asked.
        bad: how many lines were bad, and so left out.
        bad_lines: the first of them.
        warnings: what whoever uses the filter should know, as sentences.
    """

    target: str
    made: bool
    read: int
    new: int
    items: int | None
    bad: int
    bad_lines: Sequence[BadLine]
    warnings: Sequence[str]


@dataclass
class _Count:
    read: int = 0
    new: int = 0


def import_(
    where: Where | None,
    sources: Sequence[Path | str | BinaryIO],
    *,
    form: Form = "auto",
    strict: bool = False,
    key: str = "",
    project: Project | None = None,
    progress: Progress = silent,
) -> Imported:
    """Put what files hold into a filter, and make the filter where there is none.

    In a file all of it happens, or nothing. A filter that is in Redis already has what came before
    an interruption: do it again to go on.

    :param where: a target, see :func:`target_of`, like `key`.
    :param sources: paths, or streams that are open for reading bytes.
    :param form: what the files hold.
    :param strict: whether a bad line is an error. Otherwise it is left out and counted.
    :param project: whose rules make fingerprints of URLs, and whose capacity, error rate and spider
        a new filter gets.
    :raises SettingError: if a file holds something else, or a line is bad and `strict` is set.
    :raises BloomError: if the filter cannot be used.
    """
    project = project or Project()
    target = target_of(where, key=key, project=project)
    opened = [_source(source, form) for source in sources]
    if any(source.form == "filter" for source in opened):
        return _from_filters(target, opened, project, progress)
    made = not target.exists()
    count = _Count()
    with _filling(target, project, progress, made=made) as (adder, fingerprinter):
        lines = Lines(fingerprinter, strict=strict)
        for source in opened:
            for some in source.batches(lines, progress):
                count.read += len(some)
                count.new += adder.add_many(some).count(False)
    items = adder.contents().items if isinstance(adder, LocalAdder) else None
    warnings = [note for source in opened for note in source.warnings()]
    if made:
        warnings += _left_behind(target, opened)
    return Imported(
        target.name, made, count.read, count.new, items, lines.bad, lines.shown, warnings
    )


def _left_behind(target: Target, sources: Sequence[_Source]) -> list[str]:
    """Return what the next run will not take over any more, now that the job has a filter."""
    if not isinstance(target, JobTarget) or not seen_file.exists(target.folder):
        return []
    own = target.folder / seen_file.NAME
    if any(source.path and source.path.resolve() == own.resolve() for source in sources):
        return []
    return [f"The marks in {own} are not in this filter: import them as well, to keep them."]


def _source(source: Path | str | BinaryIO, form: Form) -> _Source:
    text = str(source)
    return RedisSource(text, form) if text.startswith(SCHEMES) else _Source(source, form)


class _Source:
    """A file to be read.

    :param source: its path, or a stream.
    :param form: what it holds; ``auto`` looks at it.
    """

    def __init__(self, source: Path | str | BinaryIO, form: Form) -> None:
        self.path: Path | None = None
        self._stream: io.BufferedReader | None = None
        if isinstance(source, io.IOBase):
            peeks = isinstance(source, io.BufferedReader)
            self._stream = cast("Any", source if peeks else io.BufferedReader(cast("Any", source)))
        else:
            self.path = Path(str(source))
        self.form = self._look() if form == "auto" else form

    @property
    def name(self) -> str:
        """What people call it."""
        return str(self.path) if self.path else "standard input"

    def open(self) -> BinaryIO:
        """Open it for reading.

        :raises StateError: if it cannot be read.
        """
        if self._stream:
            return self._stream
        try:
            return cast("Path", self.path).open("rb")
        except OSError as error:
            raise StateError(
                f"{self.path}: {error.strerror}. Give a file that this user can read."
            ) from error

    def size(self) -> int | None:
        """Return its bytes, None if that is not known."""
        return self.path.stat().st_size if self.path and self.path.is_file() else None

    def warnings(self) -> list[str]:
        """Return what should be known of marks that came from Scrapy's own filter."""
        if self.form != "seen" or self.path is None:
            return []
        folder = self.path.parent
        notes = []
        if self.path.name == seen_file.NAME and (why := seen_file.why_unclean(folder)):
            notes.append(
                f"The crawl of {self.path} was killed ({why}): some of its marks are those of"
                f" requests that are lost, and their pages are not fetched."
            )
        elif not scrapy_queue.is_empty(folder):
            notes.append(
                f"Requests wait in {folder / scrapy_queue.NAME}. Their pages are marked, too: a"
                f" crawl without that queue would not fetch them."
            )
        return notes

    def batches(self, lines: Lines, progress: Progress) -> Iterator[Sequence[bytes]]:
        """Yield the fingerprints in it, some at a time.

        :raises StateError: if it cannot be read.
        """
        with progress(f"reading {self.name}", self.size(), "bytes") as told:
            file = self.open()
            try:
                counting = cast("BinaryIO", _Counting(file, told))
                if self.form == "seen":
                    yield from seen_file.read_batches(counting)
                    return
                kinds: dict[str, Kind] = {"urls": "urls", "fingerprints": "fingerprints"}
                lines.kind = kinds.get(self.form, "auto")
                for batch in lines.of_stream(counting):
                    yield batch.fingerprints
            finally:
                if self.path is not None:
                    file.close()

    def target(self) -> Target:
        """Return the filter that it is.

        :raises SettingError: if it is none.
        """
        if self._stream is None:
            return FileTarget(cast("Path", self.path))
        # It is read more than once. The folder is gone with this object.
        self._folder = TemporaryDirectory(prefix="scrapy-bloom-")
        path = Path(self._folder.name) / "standard input"
        with path.open("wb") as file:
            shutil.copyfileobj(self._stream, file)
        return FileTarget(path)

    def _look(self) -> Form:
        if self._stream:
            start = self._stream.peek(len(MAGIC))[: len(MAGIC)]
        else:
            with self.open() as file:
                start = file.read(len(MAGIC))
        if start == MAGIC:
            return "filter"
        binary = start[:1] == b"\0"  # of the length of a record: no text begins with it
        named = self.path is not None and self.path.name == seen_file.NAME
        return "seen" if binary or named else "auto"


@contextmanager
def _filling(
    target: Target, project: Project, progress: Progress, *, made: bool
) -> Iterator[tuple[Adder, CanonicalFingerprinter]]:
    """Yield what adds to the filter, and what makes its fingerprints."""
    if not made:
        with target.adding() as adder:
            yield adder, project.fingerprinter_for(adder.identity)[0]
        return
    fingerprinter = project.fingerprinter
    settings = project.settings
    new = LocalFilter(
        settings[CAPACITY], settings[ERROR_RATE], digests=fingerprinter.digests, on_growth=int
    )
    target.check_identity(project.identity)
    contents = Contents(project.identity, settings[ERROR_RATE], [new.state()])
    local = LocalAdder(contents, target.name)
    with target.change(make=True) as change:
        yield local, fingerprinter
        change.put(local.contents(), progress)


class RedisSource(_Source):
    """A key in Redis: a filter of ours, or what scrapy-redis keeps.

    :param url: of the server, with ``#`` and the key behind it.
    :param form: what the key holds; ``auto`` looks at it.
    """

    def __init__(self, url: str, form: Form) -> None:
        # Imported only here: redis is an extra.
        from scrapy_bloom.redis.connection import Target as Server  # noqa: PLC0415
        from scrapy_bloom.redis.foreign import ForeignKey  # noqa: PLC0415

        self._url = url
        address, _, key = url.partition("#")
        if not key:
            raise SettingError(
                "give the key behind the URL, as in redis://localhost/0#books:requests"
            )
        self._key = ForeignKey(Server(address), key, timeout=10.0)
        self._kind = self._key.kind()
        self._left_out = 0
        self.path = None
        if self._kind not in ("set", "zset", "list", "hash"):
            raise StateError(
                f"{self.name}: found {self._kind}, expected a filter, or a set or queue of"
                f" scrapy-redis."
            )
        self.form = "filter" if self._kind == "hash" and form == "auto" else form
        if self._kind == "set" and form != "fingerprints":
            raise SettingError(
                f"{self.name} has fingerprints that scrapy-redis makes in a way of its own: they"
                f" mean nothing to this filter and cannot be turned into others. Its queue of"
                f" requests can be imported, such as #books:requests. --form fingerprints takes"
                f" those of a set as they are."
            )

    @property
    def name(self) -> str:
        """The key; the URL may have a password."""
        return f"key {self._url.partition('#')[2]}"

    def batches(self, lines: Lines, progress: Progress) -> Iterator[Sequence[bytes]]:
        """Yield the fingerprints of requests that wait, and of a set only if that is asked for."""
        with progress(f"reading {self.name}", self._key.size(), "members") as told:
            members = self._key.members()
            while some := list(islice(members, _AT_ONCE)):
                told(len(some))
                if self._kind == "set":
                    yield [bytes.fromhex(one.decode()) for one in some]
                else:
                    yield self._of_requests(some, lines.fingerprinter)

    def target(self) -> Target:
        """Return the filter under the key."""
        return target_of(self._url)

    def warnings(self) -> list[str]:
        """Return what was left out."""
        if not self._left_out:
            return []
        return [f"{self._left_out:,} requests of {self.name} cannot be read and were left out."]

    def _of_requests(
        self, bodies: Sequence[bytes], fingerprinter: CanonicalFingerprinter
    ) -> list[bytes]:
        found = []
        for body in bodies:
            try:
                told = read_plain(body)
                request = Request(
                    told["url"], method=told.get("method", "GET"), body=told.get("body") or b""
                )
                found.append(fingerprinter.fingerprint(request))
            except Exception:  # noqa: BLE001, PERF203 - whatever a request is made of
                self._left_out += 1
        return found


class _Counting:
    """A stream that tells how much of it was read."""

    def __init__(self, file: BinaryIO, told: Told) -> None:
        self._read = getattr(file, "read1", file.read)
        self._told = told

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`."""
        data: bytes = self._read(size)
        self._told(len(data))
        return data


def _from_filters(
    target: Target, sources: Iterable[_Source], project: Project, progress: Progress
) -> Imported:
    """Put whole filters into a target, which have bits and no fingerprints."""
    files = []
    for source in sources:
        if source.form != "filter":
            raise SettingError(
                f"{source.name} is no filter, and the others are. Import them one after the other."
            )
        files.append(source.target())
    made = not target.exists()
    before = 0 if made else target.read().items
    if made and len(files) == 1:
        moved = copy(files[0], target, project=project, progress=progress)
    else:
        moved = merge(files, target, project=project, progress=progress)
    read = sum(file.read().items for file in files)
    new = max(moved.items - before, 0)
    return Imported(target.name, made, read, new, moved.items, 0, (), moved.warnings)
