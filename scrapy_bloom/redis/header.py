"""What is under a key at one moment, and what is refused there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, NamedTuple

from scrapy_bloom.errors import STRANGE, StateError, shown
from scrapy_bloom.filter.info import FilterInfo
from scrapy_bloom.redis.plan import Plan, SliceRow, read_slices

PROGRAM: Final = b"scrapy-bloom"
FORMAT: Final = b"12"

_COUNTED: Final = ("waiting", "taken", "failed", "unparsed", "forgotten")
_PAGES: Final = ("done", "not_kept", "seen")
_NEEDED: Final = (*_COUNTED, "seq", "first", "plan", "slices", "window", "epoch")
_MOST_SKEW: Final = 1e11  # seconds, some thousand years
FIELDS: Final = (
    *("program", "format", "epoch", "plan", "first", "slices", "window", "order"),
    *(*_COUNTED, "seq"),
)
"""The fields of a header that every worker needs."""


class Counts(NamedTuple):
    """How many there are of what.

    Attributes:
        waiting: requests that no worker has.
        taken: requests that workers have, this one included.
        failed: requests that have failed.
        unparsed: requests that no callback got, which is no failure, or that are given up.
        forgotten: how often pages were forgotten.
        later: how many of those that wait may not be sent yet.
        workers: that hold a lease; 0 as long as nobody has looked, as with the others that follow.
        hosts: download slots with requests that need not wait for a time.
        paused: download slots that are paused.
        done: pages that are done.
        not_kept: pages that are unparsed and were not stored.
        seen: links that were dropped, because they led to such pages. No call tells.
        more: 1 if requests on the failed list will be put back before the crawl is over, else 0.
    """

    waiting: int = 0
    taken: int = 0
    failed: int = 0
    unparsed: int = 0
    forgotten: int = 0
    later: int = 0
    workers: int = 0
    hosts: int = 0
    paused: int = 0
    done: int = 0
    not_kept: int = 0
    seen: int = 0
    more: int = 0


@dataclass(frozen=True)
class State:
    """What is under a key at one moment.

    Attributes:
        epoch: identifies the filter that is there.
        plan: what its workers agree on.
        slices: oldest first, without those that have expired. If all have, an empty one stands in
            for the next, which has no key yet.
        counts: of requests, when the last script had ended.
        leases: of workers, in how many seconds each ends, negative if it has ended.
        dead: the other workers, each since when.
        last_contact: when a worker last called, in seconds since 1970; 0 if none ever was.
        through: whether a worker has left with all stored that ``start()`` yields, and none has
            come since.
        secret: the key of its probes.
    """

    epoch: str
    plan: Plan
    slices: Sequence[SliceRow]
    counts: Counts
    leases: Mapping[str, float]
    dead: Mapping[str, float]
    last_contact: float
    through: bool
    secret: bytes = field(repr=False)

    @classmethod
    def read(cls, header: Mapping[str, bytes], now: float, place: str) -> State:
        """Return the state that a header describes.

        :param now: the server's time, in seconds since 1970.
        :param place: what people call the server and the key.
        :raises StateError: if it is not one of ours, or damaged.
        """
        check_format(header.get("program", b""), header.get("format", b""), place)
        found = _read_fields(header, place)
        plan, secret = found["plan"]
        slices = found["slices"]
        counts = Counts(**{name: found[name] for name in (*_COUNTED, *_PAGES)})
        workers = {name[2:]: row for name, row in found.items() if name[:2] == "w:"}
        dead = {name: time for name, (is_dead, time) in workers.items() if is_dead}
        leases = {name: time - now for name, (is_dead, time) in workers.items() if not is_dead}
        oldest = now - plan.window * 9 / 8 if plan.window else -inf
        newest = slices[-1]
        live = [row for row in slices if row.since > oldest] or [
            newest._replace(number=newest.number + 1, since=now, items=0, again=0)
        ]
        last = found["last_contact"], found["through"]
        return cls(found["epoch"], plan, live, counts, leases, dead, *last, secret)

    @property
    def alive(self) -> list[str]:
        """Workers whose lease has not ended."""
        return [name for name, left in self.leases.items() if left > 0]

    @property
    def items(self) -> int:
        """Marks that count."""
        return sum(row.items - row.again for row in self.slices)

    def info(self) -> FilterInfo:
        """Return the state of the filter, computed from the items in its slices."""
        return self.plan.info(self.slices)


def check_format(program: bytes, number: bytes, place: str) -> None:
    """Raise StateError unless a header was written in this format.

    Nothing else of it may be looked at before: it means something else in another one.
    """
    found = program + b" " + number
    if found != PROGRAM + b" " + FORMAT:
        raise StateError(
            f"{place}: found {found.decode(errors='replace')!r}, expected"
            f" '{PROGRAM.decode()} {FORMAT.decode()}'. Nothing was changed. Use the version of"
            f" scrapy-bloom that wrote it, or another key (BLOOM_REDIS_KEY)."
        )


def _read_fields(header: Mapping[str, bytes], place: str) -> dict[str, Any]:
    """Return what the fields of a header say: see :meth:`State.read`."""
    found: dict[str, Any] = dict.fromkeys((*_COUNTED, *_PAGES), 0)
    found |= {"last_contact": 0.0, "through": False}
    name = ""
    try:
        for name in {**dict.fromkeys(_NEEDED), **header}:
            read = _READS.get("w:" if name[:2] == "w:" else name)
            if read is not None:
                found[name] = read(header[name])
        name = "window"
        if found[name] != found["plan"][0].window:
            raise ValueError("another one than in the plan")
    except (*STRANGE, StateError) as error:
        value = shown(header.get(name))
        reason = f"found a damaged header ({name}: {value}; {error!r})"
        raise refusal(place, reason, may_delete=False) from None
    return found


def read_skew(value: bytes) -> float:
    """Return by how many seconds the clock of requests and slots is ahead of the server's."""
    skew = float(value)
    if abs(skew) > _MOST_SKEW:
        raise ValueError("too many seconds")
    return skew


def _read_number(value: bytes) -> int:
    if (number := int(value)) < 0:
        raise ValueError("a negative number")
    return number


def _read_all_slices(value: bytes) -> list[SliceRow]:
    if not (slices := read_slices(value)):
        raise ValueError("no slices")
    return slices


def _read_worker(value: bytes) -> tuple[bool, float]:
    """Return whether a worker is dead, and since when, or else until when its lease lasts."""
    words = value.split()
    is_dead = words[1] == b"dead"
    return is_dead, float(words[2 if is_dead else 1])


_READS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    **dict.fromkeys((*_COUNTED, *_PAGES), int),
    "seq": _read_number,
    "plan": Plan.read,
    "slices": _read_all_slices,
    "first": lambda value: read_slices(value + b":0:0:0:0"),
    "window": float,
    "epoch": bytes.decode,
    "last_contact": float,
    "through": bool,
    "w:": _read_worker,
}
"""What reads the field of a header; fields of workers begin so."""


def refusal(place: str, reason: str, *, may_delete: bool = True) -> StateError:
    """Return the error that something under a key cannot be used.

    :param may_delete: whether to advise it: not for another spider's crawl, and not for what
        ``delete`` refuses as well.
    """
    way = " If it is a filter of ours, 'scrapy bloom delete' deletes it." if may_delete else ""
    return StateError(
        f"{place}: {reason}. Nothing was changed. Choose another key (BLOOM_REDIS_KEY).{way}"
    )
