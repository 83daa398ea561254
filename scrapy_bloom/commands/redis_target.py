"""A filter in Redis, and the requests beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import redis

from scrapy_bloom.commands.places import Marks, described, missing, occupied
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.requests import WaitingRequest, readable
from scrapy_bloom.errors import StateError
from scrapy_bloom.local.job import Identity
from scrapy_bloom.options import REDIS_TIMEOUT, OnBackendError
from scrapy_bloom.redis.client import Target as Server
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.plan import Plan, shard_key
from scrapy_bloom.redis.project import plans_of
from scrapy_bloom.redis.reader import Reader, State, describe
from scrapy_bloom.redis.shard import PROGRAM, Call, Shard, Surprise, delete
from scrapy_bloom.redis.worker import Worker as Link

_TIMEOUT: Final = 10.0  # seconds for a call, at least: nobody waits for a page meanwhile
_AT_ONCE: Final = 500


class RedisTarget:
    """A filter under a key of a Redis server or cluster.

    Methods that look create and change nothing. All raise :class:`BloomError` if the place cannot
    be used, or has no filter.

    :param server: the server.
    :param key: the key of the filter.
    :param project: how long a call may take, and what a new filter is like.

    Attributes:
        name: what people call it.
    """

    def __init__(self, server: Server, key: str, project: Project) -> None:
        self.server, self.key = server, key
        self.name = f"Redis at {server.where()}, key {key}"
        self._timeout = max(_TIMEOUT, project.settings[REDIS_TIMEOUT])

    @contextmanager
    def link(self) -> Iterator[Link]:
        """Connect."""
        link = Link(self.server, self._timeout)
        link.connect()
        try:
            with link.explained():
                yield link
        finally:
            link.close()

    # Looking

    def states(self, link: Link) -> list[State]:
        """Return the state of each shard that is there.

        :raises StateError: if there is none.
        """
        if states := Reader(link, self.key).shards():
            return states
        some: list[bytes] = []
        with suppress(redis.RedisError):  # this user may not be allowed to
            _, some = link.client.scan(0, count=1000, _type="hash")
        raise missing(self.name, self.key, [name.decode(errors="replace") for name in some])

    def info(self) -> dict[str, Any]:
        """Return what is known of the filter."""
        with self.link() as link:
            states = self.states(link)
            plan, now = states[0].plan, float(link.client.time()[0])
            ends = {name: end for state in states for name, end in state.leases.items()}
            alive = sum(end > now for end in ends.values())
            return described(
                describe(states),
                identity_in(plan),
                target=self.name,
                project=plan.project,
                exact=plan.exact or None,
                forgotten=sum(one.again for state in states for one in state.slices),
                waiting=sum(state.waiting + state.taken for state in states)
                if plan.order
                else None,
                in_flight=sum(state.taken for state in states) if plan.order else None,
                failed=sum(state.failed for state in states) if plan.order else None,
                layout=plan.layout,
                shards=plan.shards,
                workers_alive=alive,
                workers_silent=len(ends) - alive,
            )

    @contextmanager
    def asking(self) -> Iterator[Marks]:
        """Connect, to ask the filter what a crawl would call seen."""
        with self.link() as link:
            identity = identity_in(self.states(link)[0].plan)
            yield identity, Reader(link, self.key).contains_many

    @contextmanager
    def requests(
        self, *, failed: bool, newest_first: bool
    ) -> Iterator[tuple[int, int, Iterator[WaitingRequest]]]:
        """Yield how many requests are not done, how many are in flight of them, and who waits.

        :param failed: whether to yield those on the failed list instead.
        :param newest_first: of no account: the server has them in order, in each shard.
        """
        del newest_first
        with self.link() as link:
            states = self.states(link)
            if not states[0].plan.order:
                raise StateError(
                    f"{self.name}: found a filter without requests, expected those of"
                    f" scrapy_bloom.Scheduler. The queues of other schedulers are not read."
                )
            found = Reader(link, self.key).requests("failed" if failed else "queue")
            shown = (readable(one.body, one.priority) for one in found)
            taken = sum(one.taken for one in states)
            yield sum(one.waiting for one in states) + taken, taken, shown

    # Changing

    def retry(self) -> int:
        """Put the failed list back into the queue, some at a time; return how many they were."""
        count = 0
        with self.link() as link:
            for state in self.states(link):
                shard = Shard(link, state.key, state.plan)
                try:
                    left = state.failed
                    while left:
                        counts = shard.call(Call(retry=min(left, _AT_ONCE))).counts
                        count += left - counts.failed
                        left = min(left, counts.failed)
                except Surprise as surprise:
                    raise StateError(f"{self.name}: {surprise.kind.value}. Try again.") from None
                finally:
                    shard.leave()
        return count

    @contextmanager
    def changing(self, project: Project, *, forget: bool) -> Iterator[Marks]:
        """Join the workers to add or to forget, which counts at once; make a filter to add to."""
        with self.link() as link:
            if forget or not self.is_free(link):
                made_for = plans_in(self.states(link))
            else:
                made_for = self.plans(project, requests=project.keeps_requests)
        with self.opened(made_for) as shared:
            yield identity_in(made_for[0]), shared.forget_many if forget else shared.add_many

    def plans(self, project: Project, *, requests: bool) -> list[Plan]:
        """Return the plan of each shard of a new filter.

        :param requests: whether those of the spider will be beside it.
        """
        owner = project.owner if requests else {}
        made_by = project.identity.made_by
        return plans_of(project.settings, project.fingerprinter, made_by, **owner)

    @contextmanager
    def opened(self, made_for: Sequence[Plan]) -> Iterator[RedisFilter]:
        """Become a worker of the filter, or make it."""
        close = OnBackendError.CLOSE
        with RedisFilter(
            self.server, self.key, made_for, on_error=close, timeout=self._timeout
        ) as shared:
            yield shared

    def is_free(self, link: Link) -> bool:
        """Return whether nothing is under the key, but for the note that it was deleted."""
        kind = link.client.type(self.key)
        if kind != b"hash":
            return bool(kind == b"none")
        program, epoch = link.client.hmget(self.key, "program", "epoch")
        return program == PROGRAM and epoch is None

    def check_free(self, link: Link) -> None:
        """Look whether nothing is there.

        :raises StateError: if something is.
        """
        # A header that is to expire is that of a copy which was killed.
        left = Reader(link, self.key).shards() and link.client.ttl(self.key) > 0
        if not (self.is_free(link) or (left and not delete(link, self.key, note=False))):
            raise occupied(self.name)

    def delete(self) -> None:
        """Delete header and requests at one moment, then the rest.

        If it was killed it can be done again.

        :raises StateError: if a worker uses it, or what is there is not ours. Nothing is deleted.
        """
        with self.link() as link:
            # Of one that was killed a note is there.
            deleted = self.is_free(link) and link.client.type(self.key) != b"none"
            count = 1 if deleted else self.states(link)[0].plan.shards
            for number in reversed(range(count)):  # the first one leads
                if used := delete(link, shard_key(self.key, number)):
                    worker, left = used.popitem()
                    raise StateError(
                        f"{self.name}: worker {worker} uses this filter, and it was not deleted."
                        f" Stop the crawl first. If it was killed, its lease ends in {left:.0f} s."
                    )


def plans_in(states: Sequence[State]) -> list[Plan]:
    """Return the plan of each shard of a filter, also of those that are gone."""
    first = states[0].plan
    return [replace(first, shard=number) for number in range(first.shards)]


def identity_in(plan: Plan) -> Identity:
    """Return what the marks of a filter belong to."""
    return Identity(plan.spider, plan.fingerprinter, json.loads(plan.canonical))
