"""The audit of a filter in Redis: the scripts count, here is what they are told and what it means.

A worker tells which items of a call fall into the sample. While one slice is the newest, a new item
is called seen by the slices before it, with a chance that does not change, and by this one, with a
chance that grows as it fills. So the script needs the two only when a slice is added: then it takes
down how many errors were expected until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from scrapy_bloom.core.audit import AuditReport, make_sampler
from scrapy_bloom.redis.deadline import Within
from scrapy_bloom.redis.header import Header, StoredSlice

if TYPE_CHECKING:
    from scrapy_bloom.redis.place import Place


class Chances(NamedTuple):
    """How likely a new item is called seen.

    Attributes:
        newest: by the newest slice, on average while it filled.
        all: by any slice, as they are now.
    """

    newest: float
    all: float


def chances(header: Header, slices: Sequence[StoredSlice]) -> Chances:
    """Return how likely a new item is called seen by slices of a filter.

    :param slices: those that it has, oldest first.
    """
    counts = [header.layout.count(one.spec, one.items, [0], header.hashes) for one in slices]
    newest = counts[-1]
    return Chances(
        newest.lost_alone / newest.items if newest.items else 0.0,
        1 - prod(1 - one.added_rate for one in counts),
    )


def sampler_of(header: Header) -> Callable[[bytes], bool] | None:
    """Return what tells whether a fingerprint is in a filter's sample; None without an audit."""
    return make_sampler(header.secret, header.plan.audit) if header.plan.audit else None


def write_sampled(
    is_sampled: Callable[[bytes], bool], fingerprints: Iterable[bytes], before: Chances | None
) -> str:
    """Return what the scripts want to know for the audit.

    :param fingerprints: those of the call.
    :param before: the chances by the slices that are there, if the call may add another one.
    """
    items = " ".join(str(at) for at, one in enumerate(fingerprints, 1) if is_sampled(one))
    return f"{items};{before.newest!r} {before.all!r}" if before else items


def report_of(headers: Iterable[Header]) -> AuditReport | None:
    """Return what the audit of a filter has found, from the headers of its shards; None without."""
    checked, observed, predicted, ended, audited = 0, 0, 0.0, False, False
    for header in headers:
        if not header.plan.audit:
            continue
        found = header.audited
        *older, newest = header.slices
        now = chances(header, [*older, replace(newest, items=header.filled)]).newest
        rate = 1 - (1 - found.older_rate) * (1 - now)
        checked += found.checked
        observed += found.observed
        predicted += found.predicted + (found.checked - found.folded) * rate
        ended, audited = ended or found.ended, True
    return AuditReport.of(checked, observed, predicted, ended=ended) if audited else None


def fetch_report(shards: Iterable[tuple[Place, Header | None]]) -> AuditReport | None:
    """Return what the audit of a filter has found so far, among all its workers; None without one.

    :param shards: for each where it is, and what was found there.
    :raises BackendError: if a server cannot be used.
    """
    headers = []
    for place, header in shards:
        if header is None or not header.plan.audit:
            continue
        with place.explained(), Within(place.timeout):
            names = ("signature", "slices", "filled", "audited")
            signature, *now = place.client.hmget(place.key, *names)
        if signature == header.signature.encode():
            headers.append(header.updated(*now))
    return report_of(headers)
