"""Filters in files: in the job directory of a crawl, or in one file by itself."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from heapq import nsmallest
from itertools import islice, takewhile
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from scrapy_bloom import file
from scrapy_bloom.commands.places import Found, Place, View
from scrapy_bloom.commands.project import Marks, Project
from scrapy_bloom.commands.requests import Decoded, StoredRequest, decoded, read, start_in
from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.crawl.identity import pages_of
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.local.backend import account_of
from scrapy_bloom.local.failed import reasons_in
from scrapy_bloom.local.job import (
    Identity,
    identity_of,
    is_in_use,
    lock_job,
    new_filter,
    owner_metadata,
    read_meta,
)
from scrapy_bloom.local.later import LATER, stored_pauses, stored_requests, waiting_body
from scrapy_bloom.local.metadata import (
    DIGEST,
    DONE,
    DUE,
    FILTER,
    IDENTITY,
    IN_FLIGHT,
    KIND,
    PID,
    REQUESTS,
    STORED,
    THROUGH,
    read_metadata,
)
from scrapy_bloom.local.scrapys import SCRAPYS_MARKS, SCRAPYS_QUEUE, digest
from scrapy_bloom.local.store import NAME, Store, count_in, reading

_DAMAGED: Final = FailedPage("unreadable", "", 0.0, 0, "", unparsed=False, way=(), body=b"")
_COMPANIONS: Final = ("", "-journal", "-wal", "-shm", ".new")


class LocalTarget:
    """A filter in a file, as it was at the last commit of its crawl.

    Methods that inspect create, lock and change nothing. All raise :class:`BloomError` if the file
    cannot be used, or has no filter.

    :param path: an existing file, or a job directory, or ``bloom.sqlite`` in one.
    :param project: the owner of a new filter; its settings choose the order of the queue.

    Attributes:
        path: the file, also where a link to it was named.
        folder: the job directory.
        name: what people call it.
    """

    def __init__(self, path: Path, project: Project) -> None:
        self.name = str(path.parent if path.name == NAME else path)
        path = path if path.name == NAME or path.is_file() else path / NAME
        self.folder, self.path = path.parent, file.followed(path)
        self._project = project

    # Inspecting

    def info(self) -> dict[str, Any]:
        """Return the facts of the filter; times are in seconds since 1970."""
        with self.reading() as store:
            facts = {
                **self.look(),
                **asdict(store.stored.info()),
                "forgotten": store.stored.forgotten,
                "disk": self.path.stat().st_size + file.log_size(self.path),
            }
            if "account" in facts:
                now = time.time()
                dates = [each.date for each in stored_requests(store) if each.date > now]
                facts |= {"later": len(dates), "next_due": min(dates, default=None)}
        return facts

    def look(self) -> dict[str, Any]:
        """Return how far the crawl is. Marks are not read, and requests are only counted."""
        self._check_there()
        with file.reading(self.path) as database:
            meta = read_metadata(database)
            marks = sum(row[-1] for row in file.rows(database, "slices"))
            (again,) = database.execute("SELECT count(*) FROM again").fetchone()
            facts = {
                "target": self.name,
                **asdict(_identity(self.path, meta)),
                "items": max(0, marks - again),
                "written": _last_commit(self.path),
            }
            if PID in meta:
                clean = file.read_counters(database).clean
                facts["last_run"] = _last_run(self.path, meta, clean)
                facts["through"] = bool(clean and meta.get(THROUGH))
                facts["due"] = len(meta.get(DUE, b"").partition(b"\n")[2]) if clean else 0
            if meta.get(KIND) == REQUESTS:
                queues = {path: id_ for id_, path, _ in file.rows(database, "queues")}
                later = count_in(database, queues[LATER]) if LATER in queues else 0
                running = facts.get("last_run", "").startswith("running")
                in_flight = meta.get(IN_FLIGHT, 0) if running else 0
                account = account_of(meta, reasons_in(database), meta.get(STORED, 0), in_flight)
                facts |= {
                    "account": account.facts(),
                    "later": later,
                    "paused": stored_pauses(meta),
                }
        return facts

    def _check_there(self) -> None:
        if not self.path.exists():
            if (self.folder / SCRAPYS_QUEUE).exists() or (self.folder / SCRAPYS_MARKS).exists():
                raise StateError(
                    f"{self.name}: holds a queue of Scrapy's own scheduler; scrapy_bloom.Addon is"
                    f" not enabled, or was not when that crawl began. Set ADDONS only once in"
                    f" settings.py: the template's 'ADDONS = {{}}' further down overrides it."
                )
            there = "no filter" if self.folder.is_dir() else "no such directory"
            raise StateError(f"{self.name}: found {there}.")

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """Open the file for reading."""
        self._check_there()
        with reading(self.path) as store:
            yield store

    def failed(self) -> Iterator[tuple[FailedPage, Decoded]]:
        """Yield what has failed, or is unparsed."""
        with self.reading() as store:
            for _, failed in store.failed.stored():
                yield failed or _DAMAGED, decoded(failed.body if failed else None)

    def upcoming(self, count: int) -> list[Decoded]:
        """Return the requests that are sent next, in order; those that wait for a time last."""
        requests = self._requests()  # those that wait come last there, too, but in no order
        now = [*islice(takewhile(lambda each: not each.not_before, requests), count)]
        if len(now) == count:
            return now
        waiting = (request for request in self._requests() if request.not_before)
        return now + nsmallest(count - len(now), waiting, key=attrgetter("not_before"))

    @contextmanager
    def view(self) -> Iterator[View]:
        """Open the file to look for pages."""
        with self.reading() as store:
            requests = partial(self._found, store) if store.meta.get(KIND) == REQUESTS else None
            done = pages_of(store.starts.done())
            yield View(identity_in(store), store.stored.contains_many, requests, done, read)

    # Changing

    def settle(self, chosen: Callable[[FailedPage], bool], *, put_back: bool) -> int:
        """Take requests off the failed list; return how many.

        :param chosen: says which.
        :param put_back: whether the next run fetches them again; else they count as done.
        """
        with self._locked(), self._writing() as store:
            listed = store.failed.stored()
            ids = [id_ for id_, failed in listed if failed is not None and chosen(failed)]
            if ids and put_back:
                store.fail_redirected()  # while it is known what has failed
            for failed in filter(None, map(store.failed.pop, ids)):
                if put_back:
                    store.filter.forget_many(failed.way if failed.unparsed else ())
                    row = _put_back(store, failed)
                    if start := start_in(failed.body):
                        store.starts[start] = row
                else:
                    store.meta[DONE] = store.meta.get(DONE, 0) + 1
        return len(ids)

    @contextmanager
    def marks(self, verb: str) -> Iterator[Marks]:
        """Open the filter for a verb: a change in one commit.

        :param verb: ``add``, which creates the filter if necessary, or ``forget``.
        """
        new = verb == "add" and not self.path.exists()
        if new and not self._project.spider:
            raise SettingError(
                f"{self.name}: a new job directory needs the name of its spider: add --spider NAME."
            )
        with self._locked(new=new), self._writing(new=new) as store:
            forget, add = store.filter.forget_many, store.filter.add
            change = forget if verb == "forget" else lambda marks: [*map(add, marks)]
            yield identity_in(store), change

    def delete(self) -> None:
        """Delete the file, with the requests of ``scrapy_bloom.Scheduler``."""
        with self._locked():
            self._remove()

    # Within

    @contextmanager
    def _locked(self, *, new: bool = False) -> Iterator[None]:
        """Lock the job directory, once it is known that its filter is ours.

        :param new: whether there is none yet.
        """
        if not new:
            self._check_there()
            read_meta(self.path)
        with lock_job(self.path.parent, "Stop it first; nothing was changed."):
            yield

    @contextmanager
    def _writing(self, *, new: bool = False) -> Iterator[Store]:
        """Open the file, and commit what is changed in this block, if anything. It is locked.

        :param new: whether there is none yet.
        """
        with _explained(self.path):
            store = self._create() if new else Store(self.path)
            try:
                yield store
                if not (new or store.dirty):
                    store.abandon()
                elif store.clean:
                    store.close()
                else:  # a killed run stays one
                    store.commit(sync=True)
                    store.abandon()
            except BaseException:
                store.abandon()
                if new:
                    self._remove()
                raise

    def _requests(self) -> Iterator[Decoded]:
        """Yield the requests that are not done, in order; those that wait for a time come last."""
        with self.reading() as store:
            for each in requests_in(store, self._project.newest_first):
                yield decoded(None if each.damaged else each.body, each.date)

    def _found(self, store: Store) -> Iterator[Found]:
        """Yield the requests that wait or are in flight, and the failed list."""
        run = _last_run(store.path, store.meta, store.clean) if PID in store.meta else ""
        state = "waiting or in flight" if run.startswith("running") else "waiting"
        for each in requests_in(store, self._project.newest_first):
            if not each.damaged:
                yield Found(each.body, None, Place(state, each.date))
        for _, failed in store.failed.stored():
            if failed is not None:
                yield Found(failed.body, None, Place.of_failed(failed))

    def _create(self) -> Store:
        project = self._project
        fresh = new_filter(project.settings, digests=project.fingerprinter.digests)
        store = Store(self.path, fresh)
        store.meta |= owner_metadata(project.identity, FILTER) | {DIGEST: digest(self.folder)}
        return store

    def _remove(self) -> None:
        """Delete the file and what belongs to it. Without the file, the rest is of no use."""
        for suffix in _COMPANIONS:
            self.path.with_name(f"{self.path.name}{suffix}").unlink(missing_ok=True)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise file.unusable(path, error) from error


def _put_back(store: Store, failed: FailedPage) -> int:
    """Store a request as if it had never failed; return its row.

    It waits for a time that has come, so the next run puts it into its queue, whichever that is.
    """
    with suppress(Exception):  # it is put back as it is
        failed = failed.retried()
    body = waiting_body(time.time(), decoded(failed.body).priority, failed.body)
    return store.push(store.queue(LATER, None), body)


def identity_in(store: Store) -> Identity:
    """Return what the marks of a file belong to."""
    return _identity(store.path, store.meta)


def _identity(path: Path, meta: dict[str, Any]) -> Identity:
    return identity_of(path, meta) if IDENTITY in meta else Identity("", "", {})


def _last_commit(path: Path) -> float:
    """Return when a file was last written to; the log beside it has the latest commits."""
    log = path.with_name(f"{path.name}-wal")
    return max(each.stat().st_mtime for each in (path, log) if each.exists())


def _last_run(path: Path, meta: Mapping[str, Any], clean: int) -> str:
    """Return how the last run ended, or that it is running: it locks its job directory."""
    if clean:
        return "stopped"
    return f"running as process {meta[PID]}" if is_in_use(path.parent) else "killed"


def requests_in(
    store: Store, newest_first: Callable[[str], bool] = lambda _: False
) -> Iterator[StoredRequest]:
    """Yield all requests, in the order of priorities and of their queues, those that wait last.

    :param newest_first: returns for a queue whether its newest request comes first.
    """
    queues = sorted(
        (-priority_of(queue.path), queue.path, number)
        for number, queue in store.queues.items()
        if queue.path != LATER
    )
    for negated, path, number in queues:
        slot = store.queues[number].slot
        for _, body in store.read(number, newest=newest_first(path)):
            yield StoredRequest(slot, -negated, body or b"", damaged=body is None)
    for _, date, priority, body in stored_requests(store):
        yield StoredRequest(None, priority, body or b"", date, damaged=body is None)


def priority_of(queue: str) -> int:
    """Return the priority of the requests in a queue.

    The last part of its name is Scrapy's priority, negated; of start requests with an s.
    """
    return -int(queue.rpartition("/")[2].rstrip("s"))
