"""A filter in Redis, and the requests beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import Any, Final

from scrapy_bloom.commands.output import note
from scrapy_bloom.commands.places import Found, Place, View
from scrapy_bloom.commands.project import Marks, Project
from scrapy_bloom.commands.requests import Decoded, decoded
from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.crawl.identity import pages_of
from scrapy_bloom.errors import StateError
from scrapy_bloom.local.job import Identity
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.client import Server
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.header import State
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.member import Taken
from scrapy_bloom.redis.packing import Packing, read
from scrapy_bloom.redis.plan import Plan
from scrapy_bloom.redis.project import plan_of
from scrapy_bloom.redis.reader import FailedRow, Reader
from scrapy_bloom.redis.wire import Call, in_calls
from scrapy_bloom.redis.worker import Surprise, Worker, delete
from scrapy_bloom.settings import REDIS_TIMEOUT

_HOSTS: Final = 5
"""How many of the hosts that are paused are named."""

_SLOTS: Final = 100
"""How many hosts are counted at each look, of those that are next and of those paused."""

_TIMEOUT: Final = 10.0  # seconds for a call, at least: nobody waits for a page meanwhile


class RedisTarget:
    """A filter under a key of a Redis server or cluster.

    Methods that inspect create and change nothing. All raise :class:`BloomError` if the key cannot
    be used, or has no filter.

    :param server: the server.
    :param key: the key of the filter.
    :param project: its settings: how long a call may take, and what a new filter is like.

    Attributes:
        key: as given.
        name: what people call it.
    """

    def __init__(self, server: Server, key: str, project: Project) -> None:
        self.key = key
        self.name = f"Redis at {server.address()}, key {key}"
        self._server, self._project = server, project
        self._timeout = max(_TIMEOUT, project.settings[REDIS_TIMEOUT])

    @contextmanager
    def _connected(self) -> Iterator[Link]:
        """Connect.

        :raises StateError: if the server loses data that was written in this block.
        """
        link = Link(self._server, self._timeout)
        try:
            with link.explained():
                yield link
        except Surprise as surprise:
            raise StateError(f"{self.name}: {surprise}. Try again.") from None
        finally:
            link.close()

    @contextmanager
    def _reading(self) -> Iterator[Reader]:
        """Connect to read, and say in the end which requests could not be read."""
        with self._connected() as link:
            yield (reader := Reader(link, self.key))
            for request, why in reader.skipped.items():
                note(f"{self.name}: skipped request {request}: {why}")

    # Inspecting

    def info(self) -> dict[str, Any]:
        """Return the facts of the filter; times are in seconds since 1970."""
        with self._reading() as reader:
            return self._facts(reader, reader.existing())

    def look(self) -> dict[str, Any]:
        """Return the same, and who is at it."""
        with self._reading() as reader:
            state = reader.existing()
            taken = reader.taken()
            lease = upkeep.LEASE
            workers = [
                {
                    "name": name,
                    "lease": max(0.0, min(left, lease)),
                    "silent": lease - left
                    if left < lease * 2 / 3 and name in state.leases
                    else 0.0,
                    "dead": state.dead.get(name, 0.0),
                    "in_flight": len(taken.get(name, ())),
                }
                for name, left in {**dict.fromkeys(state.dead, 0.0), **state.leases}.items()
            ]
            facts = self._facts(reader, state)
            return facts | {"workers": workers, "slots": reader.slots(_SLOTS), "taken": taken}

    def _facts(self, reader: Reader, state: State) -> dict[str, Any]:
        facts = {
            "target": self.name,
            **asdict(identity_in(state.plan)),
            "project": state.plan.project,
            **asdict(state.info()),
            "forgotten": sum(row.again for row in state.slices),
            "workers_alive": len(state.alive),
        }
        if state.plan.order:
            account = reader.account(state.counts).facts()
            facts |= {"account": account, **reader.schedule(_HOSTS)}
            run = "running" if state.alive else "killed" if state.leases else "stopped"
            facts |= {"last_run": run, "through": state.through, "written": state.last_contact}
        return facts

    def failed(self) -> Iterator[tuple[FailedPage, Decoded]]:
        """Yield what has failed, or is unparsed."""
        with self._reading() as reader:
            for _, failed, _ in reader.failed():
                yield failed, decoded(failed.body, read=read)

    def upcoming(self, count: int) -> list[Decoded]:
        """Return the requests that are sent next, in order; those that wait for a time last."""
        with self._reading() as reader:
            now = [(each, 0.0) for each in reader.upcoming(count)]
            return [
                decoded(each.body, date, read=read)
                for each, date in chain(now, reader.delayed(count - len(now)))
            ]

    @contextmanager
    def view(self) -> Iterator[View]:
        """Connect to look for pages."""
        with self._reading() as reader:
            plan = reader.existing().plan
            requests = partial(_found, reader) if plan.order else None
            done = pages_of(reader.starts())
            yield View(identity_in(plan), reader.contains_many, requests, done, read)

    # Changing

    def settle(self, chosen: Callable[[FailedPage], bool], *, put_back: bool) -> int:
        """Take requests off the failed list, in batches; return how many.

        :param chosen: says which.
        :param put_back: whether they go back into the queue; else they count as done.
        :raises StateError: if workers use it.
        """
        with self._connected() as link:
            reader = Reader(link, self.key)
            state = reader.existing()
            if state.alive:
                raise StateError(
                    f"{self.name}: worker {state.alive[0]} uses this crawl, and nothing was"
                    f" changed. Stop the crawl first. If it was killed, try again in half a minute."
                )
            packing = Packing()
            shared = Worker(link, self.key, state.plan)
            try:
                rows = (row for row in reader.failed() if chosen(row.failed))
                for batch in in_calls(rows, lambda row: len(row.request.body)):
                    call = Call()
                    for row in batch:
                        call.restored[row.key] = retried(row, packing) if put_back else None
                        call.ways += row.failed.way if put_back else ()
                    shared.call(call)
                before, after = state.counts, shared.counts
                return before.failed + before.unparsed - after.failed - after.unparsed
            finally:
                shared.leave()

    @contextmanager
    def marks(self, verb: str) -> Iterator[Marks]:
        """Join the workers for a change.

        :param verb: ``add``, which creates the filter if necessary, or ``forget``.
        """
        with self._connected() as link:
            reader = Reader(link, self.key)
            state = reader.state() if verb == "add" else reader.existing()
        owner = self._project.owner if self._project.stores_requests else {}
        plan = self._plan(owner) if state is None else state.plan
        opened = RedisFilter(self._server, self.key, plan, on_error="close", timeout=self._timeout)
        with opened as filter_:
            change = filter_.add_many if verb == "add" else filter_.forget_many
            yield identity_in(plan), change

    def _plan(self, owner: dict[str, Any]) -> Plan:
        """Return the plan of a new filter.

        :param owner: whose requests will be beside it, see :attr:`Project.owner`.
        """
        project = self._project
        made_by = project.identity.made_by
        return plan_of(project.settings, project.fingerprinter, made_by, **owner)

    def delete(self) -> None:
        """Delete marks and requests.

        :raises StateError: if a worker uses it, or it is not ours. Nothing is deleted.
        """
        with self._connected() as link:
            reader = Reader(link, self.key)
            if reader.state() is None and not reader.to_free():
                reader.existing()
            if used := delete(link, self.key):
                name, left = used.popitem()
                raise StateError(
                    f"{self.name}: worker {name} uses this filter, and it was not deleted."
                    f" Stop the crawl first. If it was killed, its lease ends in {left:.0f} s."
                )


def retried(row: FailedRow, packing: Packing) -> Taken:
    """Return a failed request as if it had never failed, as far as it can be decoded."""
    with suppress(Exception):  # it is put back as it is
        failed = row.failed.retried(read=packing.fields, write=packing.write)
        return replace(row.request, body=failed.body)
    return row.request


def _found(reader: Reader) -> Iterator[Found]:
    """Yield the requests that are not done.

    Those that go from a worker to another or to the failed list meanwhile are met the second time.
    """
    yield from _begun(reader)
    for each, date in reader.waiting():
        yield Found(each.body, each.fingerprint, Place("waiting", date))
    yield from _begun(reader)


def _begun(reader: Reader) -> Iterator[Found]:
    for each, worker, _ in reader.in_flight():
        place = Place("in flight", worker=worker)
        yield Found(each.body, each.fingerprint, place)
    for _, failed, request in reader.failed():
        yield Found(request.body, request.fingerprint, Place.of_failed(failed))


def identity_in(plan: Plan) -> Identity:
    """Return what the marks of a filter belong to."""
    return Identity(plan.spider, plan.fingerprinter, json.loads(plan.canonical), plan.writer)
