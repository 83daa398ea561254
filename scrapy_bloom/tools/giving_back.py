"""The way back from ``scrapy_bloom.Scheduler`` to scrapy-redis's scheduler.

Each request is written to scrapy-redis's queue first, and then taken out of ours. So an
interruption loses none, and to go on this is done again: then some are fetched twice, at most.
"""

from __future__ import annotations

import marshal
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.frontier.requests import PICKLE, payload_in
from scrapy_bloom.frontier.scrapy_redis import ScrapyRedis
from scrapy_bloom.tools.progress import Progress, silent
from scrapy_bloom.tools.project import Project
from scrapy_bloom.tools.resolve import Where, target_of

if TYPE_CHECKING:
    from scrapy_bloom.redis.foreign import ForeignQueue
    from scrapy_bloom.redis.queue.giver import QueueGiver
    from scrapy_bloom.redis.queue.member import Stored

_KINDS: Final = {"priority": "zset", "fifo": "list", "lifo": "list"}


@dataclass(frozen=True)
class GivenBack:
    """What came of giving requests back.

    Attributes:
        target: where they were.
        key: the key of scrapy-redis's queue.
        requests: how many requests were written to it.
        holds: how many it has now, with those that were there.
        failed: how many stay in our list of those that nobody takes any more.
        let_through: how many pages our scheduler would have let through once more. For scrapy-redis
            with our filter they are seen.
    """

    target: str
    key: str
    requests: int
    holds: int
    failed: int
    let_through: int


def give_back(
    where: Where | None,
    *,
    key: str = "",
    project: Project | None = None,
    progress: Progress = silent,
    note: Callable[[str], object] = str,
) -> GivenBack:
    """Write the requests of ``scrapy_bloom.Scheduler`` to the queue of scrapy-redis.

    The filter stays: with the add-on, or :class:`BloomDupeFilter`, it goes on.

    :param where: a target in Redis, see :func:`target_of`, like `key`. No crawl may use it.
    :param project: whose settings name scrapy-redis's key, queue class and serializer.
    :param note: is told if there are leases of killed workers to wait for, as a sentence.
    :raises SettingError: if it is no target in Redis, or the queue class is not scrapy-redis's.
    :raises BloomError: if a crawl uses it, or the server cannot be used.
    """
    project = project or Project()
    target = target_of(where, key=key, project=project)
    # Imported only here: redis is an extra.
    from scrapy_bloom.redis.queue.giver import QueueGiver  # noqa: PLC0415
    from scrapy_bloom.tools.redis_target import RedisTarget  # noqa: PLC0415

    if not isinstance(target, RedisTarget):
        raise SettingError(f"{target.name} is not in Redis")
    with target.queues() as queues:
        spider = project.spider or queues.spider
        if not (spider or queues.shards):
            raise SettingError(
                f"{target.name}: it is not known whose requests these are. Give the spider's name"
                f" with --spider"
            )
        form = ScrapyRedis.of(project.scrapys, spider)
        kind = _KINDS[form.order]
        givers = [QueueGiver(reader.place) for reader in queues.readers]
        target.check_deserted(queues, note)
        queue = target.foreign(form.queue)
        try:
            if (found := queue.kind()) not in (kind, "none"):
                raise StateError(
                    f"{target.name}: found a {found} under {form.queue}, expected a {kind} or"
                    f" nothing. Give the SCHEDULER_QUEUE_CLASS of that queue, or delete the key."
                )
            written = _Written(queue, form, progress)
            for giver in givers:
                giver.begin()
                written.give(giver)
            holds = queue.size()
        finally:
            queue.close()
        looks = [giver.left() for giver in givers]
    failed, again = (sum(counts) for counts in zip(*looks, strict=True))
    return GivenBack(target.name, form.queue, written.count, holds, failed, again)


class _Written:
    """Writes to scrapy-redis's queue.

    Attributes:
        count: how many requests.
    """

    def __init__(self, queue: ForeignQueue, form: ScrapyRedis, progress: Progress) -> None:
        self._queue = queue
        self._form = form
        self._progress = progress
        self.count = 0

    def give(self, giver: QueueGiver) -> None:
        """Write all requests of one shard, those last that are to be first in a stack."""
        with self._progress("writing requests", giver.count(), "requests") as told:
            before = self.count
            if self._form.order != "lifo":
                self._give_taken(giver)
            while some := giver.some_waiting(from_the_end=self._form.order == "lifo"):
                self._write([request for _, request in some], giver)
                giver.remove_waiting([value for value, _ in some])
                told(self.count - before)
                before = self.count
            if self._form.order == "lifo":
                self._give_taken(giver)

    def _give_taken(self, giver: QueueGiver) -> None:
        """Write what killed workers have left. What they held has a mark that must not count."""
        some = giver.taken()
        held = [request.fingerprint for _, request in some if not request.body]
        giver.let_through([fingerprint for fingerprint in held if fingerprint is not None])
        self._write([request for _, request in some if request.body], giver)
        giver.remove_taken([name for name, _ in some])

    def _write(self, requests: Sequence[Stored], giver: QueueGiver) -> None:
        found: list[tuple[int, bytes]] = []
        for request in requests:
            try:
                found.append((request.priority, self._payload(request.body)))
            except Exception:  # noqa: BLE001, PERF203 - its parts may raise anything
                giver.put_aside(request)
        if found:
            self._queue.add(found, ranked=self._form.order == "priority")
        self.count += len(found)

    def _payload(self, body: bytes) -> bytes:
        """Return a request as scrapy-redis writes it."""
        payload = payload_in(body)
        pickled = payload[0] == PICKLE
        if pickled and self._form.dumps is None:
            return payload
        told = pickle.loads(payload) if pickled else marshal.loads(payload)  # noqa: S301, S302
        dumped = self._form.dumps(told) if self._form.dumps else pickle.dumps(told)
        return dumped.encode() if isinstance(dumped, str) else dumped
