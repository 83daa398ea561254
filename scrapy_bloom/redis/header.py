"""The header of a filter in Redis: its fields, and which headers are refused.

The header is a hash. These fields are set once, and ``signature`` is their SHA-1:

=================  ==========================================================================
``program``        ``scrapy-bloom``
``format``         1
``epoch``          random; a filter with another epoch is another filter
``rebuilt_of``     epoch of the lost filter that this one replaces
``secret``         key of the probes, 16 bytes
``hashes``         k, positions in a probe
``digests``        1 if fingerprints of 20 bytes are taken as SHA-1 digests
``capacity``       items in the first slice of this shard
``error_rate``     bound for the total error rate
``shard``          number of this shard
``shards``         how many shards there are
``fingerprinter``  what made the fingerprints
``canonical``      the rules by which URLs were rewritten before, as JSON
``layout``         how its items are stored
``window``         seconds that an item is kept, at least; 0 for ever
=================  ==========================================================================

These change: ``slices`` (capacity:error rate:blocks of each, oldest first; with a window
then :number:date:items), ``dropped`` (with a window:
number:keys of slices that are being deleted), ``filled`` (items in the newest one), ``losses`` (how
often parts of the filter were lost), ``forgotten`` (how often items were forgotten), ``again`` (how
many items are new once more though their bits are set, in the layout ``bitmap``; the hash ``again``
beside the segments has them), ``m:i.j`` (which keys of slice *i* were made: in the layout
``bitmap`` key *j*, in ``sets`` a bit for each of 1,024 keys), ``w:worker`` (number of the worker's
last call, and its answer), ``l:worker`` (end of its lease). While the filter is deleted, which may
take several calls, ``condemned`` has its signature and ``clearing`` says how far that has come. A
filter that was copied to Redis has ``spider``, too: whose marks it holds. One that marks the
requests of a queue beside it has ``queued``. The hash ``i.ages``
beside the keys of slice *i* tells when pages with a greatest age were let through.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha1
from typing import Any, Final

from scrapy_bloom.core.growth import (
    MOST_GENERATIONS,
    SliceSpec,
    generation_capacity,
    generation_rate,
    live_slices,
)
from scrapy_bloom.core.hashing import SECRET_BYTES, new_secret
from scrapy_bloom.core.sizing import MAX_HASHES
from scrapy_bloom.errors import StateError
from scrapy_bloom.options import ERROR_RATE, EXACT, REDIS_LAYOUT, REDIS_SHARDS, WINDOW
from scrapy_bloom.redis.layout import Layout, layout_of
from scrapy_bloom.redis.place import Place
from scrapy_bloom.registry import LAYOUTS

PROGRAM: Final = b"scrapy-bloom"
_FORMAT: Final = b"1"
_MAX_BLOCKS: Final = 1 << 32
_EPOCH_BYTES: Final = 8


@dataclass(frozen=True)
class Plan:
    """What a shard must be for a worker to use it.

    Attributes:
        capacity: items in its first slice.
        error_rate: bound for its total error rate.
        digests: whether 20-byte fingerprints are SHA-1 digests.
        fingerprinter: what makes the fingerprints.
        shard: its number.
        shards: how many shards there are.
        canonical: the rules by which URLs were rewritten before, as JSON. Workers may differ in it.
        layout: how its items are stored.
        window: seconds that an item is kept, at least; 0 for ever.
    """

    capacity: int
    error_rate: float
    digests: bool
    fingerprinter: str
    shard: int = 0
    shards: int = 1
    canonical: str = "{}"
    layout: str = "bitmap"
    window: float = 0.0


@dataclass(frozen=True)
class StoredSlice(SliceSpec):
    """A slice as the header lists it.

    Attributes:
        number: the number in the names of its keys.
        since: when its generation began, in seconds since 1970; 0 if it has no date (yet).
        items: items in it; those of the newest slice are in ``filled``.
    """

    number: int
    since: float
    items: int

    @property
    def spec(self) -> SliceSpec:
        """Its geometry."""
        return SliceSpec(self.capacity, self.error_rate, self.blocks)


@dataclass(frozen=True)
class Header:
    """A header that was found to be whole.

    Attributes:
        plan: what the shard is for.
        epoch: its identity, 16 hex digits.
        rebuilt_of: epoch of the lost filter that it replaces; empty if there was none.
        secret: the key of its probes.
        hashes: k.
        slices: its slices, oldest first.
        filled: items in the newest slice.
        losses: how often parts of it were lost.
        forgotten: how often items were forgotten.
        again: how many of them are on the list of those that are new once more.
        signature: SHA-1 of the fields that never change.
        constant: the fields that never change.
    """

    plan: Plan
    epoch: str
    rebuilt_of: str
    secret: bytes = field(repr=False)
    hashes: int
    slices: tuple[StoredSlice, ...]
    filled: int
    losses: int
    forgotten: int
    again: int
    signature: str

    @property
    def items(self) -> int:
        """How many items the shard has; with dates at least, if some were forgotten and dropped."""
        added = sum(slice_.items for slice_ in self.slices[:-1]) + self.filled
        return max(0, added - (self.forgotten if self.layout.removes else self.again))

    @property
    def marked(self) -> bool:
        """Whether it has marks; :attr:`items` may be 0 though it has.

        What was forgotten stays in that count when its generation is dropped.
        """
        return self.filled > 0 or any(slice_.items for slice_ in self.slices[:-1])

    def live(self, now: float) -> Header:
        """Return it without the generations that are over; with one that begins now if all are."""
        window = self.plan.window
        if not window:
            return self
        slices = live_slices(self.slices, window, now)
        if slices:
            return replace(self, slices=tuple(slices))
        last = self.slices[-1]
        new = replace(last, number=last.number + 1, since=now, items=0)
        return replace(self, slices=(new,), filled=0)

    @property
    def dated(self) -> bool:
        """Whether its slices have dates."""
        return self.plan.window > 0

    @property
    def layout(self) -> Layout:
        """How its items are stored."""
        return layout_of(self.plan.layout)

    def next_slice(self, slices: Sequence[StoredSlice], *, due: bool = False) -> SliceSpec:
        """Return the slice to add to `slices`.

        :param due: whether it begins a generation.
        """
        plan = self.plan
        if not plan.window:
            return self.layout.next_slice(slices, plan.capacity, plan.error_rate, self.hashes)
        newest = None if due else slices[-1].since
        others = [slice_ for slice_ in slices if slice_.since != newest]
        capacity = generation_capacity(sum(one.items for one in others), plan.capacity)
        rate = generation_rate(others, plan.error_rate)
        chain = [slice_ for slice_ in slices if slice_.since == newest]
        return self.layout.next_slice(chain, capacity, rate, self.hashes)


def first_slice(plan: Plan) -> tuple[SliceSpec, int]:
    """Return the slice that a new filter of this plan begins with, and its k."""
    layout = layout_of(plan.layout)
    rate = plan.error_rate / MOST_GENERATIONS if plan.window else plan.error_rate
    hashes = layout.hashes(rate)
    return layout.next_slice([], plan.capacity, rate, hashes), hashes


def new_fields(plan: Plan, rebuilt_of: str) -> dict[str, bytes]:
    """Return the fields of a new header, with an epoch and a secret of its own."""
    first, hashes = first_slice(plan)
    return fields_of(plan, new_secret(), hashes, [first], rebuilt_of=rebuilt_of)


def fields_of(
    plan: Plan,
    secret: bytes,
    hashes: int,
    slices: Sequence[SliceSpec],
    filled: int = 0,
    *,
    rebuilt_of: str = "",
) -> dict[str, bytes]:
    """Return the fields of a header, with an epoch of its own.

    :param slices: its slices, oldest first; with a window those with dates keep them.
    :param filled: items in the newest one.
    """
    constant = {
        "program": PROGRAM,
        "format": _FORMAT,
        "epoch": secrets.token_hex(_EPOCH_BYTES).encode(),
        "rebuilt_of": rebuilt_of.encode(),
        "secret": secret,
        "hashes": str(hashes).encode(),
        "digests": str(int(plan.digests)).encode(),
        "capacity": str(plan.capacity).encode(),
        "error_rate": repr(plan.error_rate).encode(),
        "shard": str(plan.shard).encode(),
        "shards": str(plan.shards).encode(),
        "fingerprinter": plan.fingerprinter.encode(),
        "canonical": plan.canonical.encode(),
        "layout": plan.layout.encode(),
        "window": repr(plan.window).encode(),
    }
    # Without a date the first call finds the newest slice empty, and dates it.
    dates = [
        f":{number}:{spec.since:.6f}:{spec.items}"
        if isinstance(spec, StoredSlice)
        else f":{number}:0:{spec.capacity}"
        for number, spec in enumerate(slices)
    ]
    dates[-1] = dates[-1].rpartition(":")[0] + f":{filled}"
    listed = [
        write_slice(spec) + date * bool(plan.window)
        for spec, date in zip(slices, dates, strict=True)
    ]
    return {
        **constant,
        "signature": _signature(constant).encode(),
        "slices": " ".join(listed).encode(),
        "filled": str(filled).encode(),
        "losses": b"0",
    }


def read_header(place: Place, fields: Mapping[bytes, bytes]) -> Header:
    """Return the header that these fields make.

    :param place: where it was found.
    :raises StateError: if it is another program's, newer, or damaged.
    """
    if fields.get(b"program") != PROGRAM:
        raise StateError(
            f"{place.name}: found a hash that scrapy-bloom did not write (fields"
            f" {_sample(fields)}), expected a filter or nothing. {place.other_key}"
        )
    if fields.get(b"format") != _FORMAT:
        raise StateError(
            f"{place.name}: found a filter of format {_text(fields.get(b'format'))}, expected"
            f" '1'. It was written by another version of scrapy-bloom. Use that version, or"
            f" {place.or_other_key}"
        )
    layout = fields.get(b"layout")
    if layout is None or layout.decode(errors="replace") not in LAYOUTS:
        raise StateError(
            f"{place.name}: found a filter with a layout of {_text(layout)}, expected"
            f" {' or '.join(map(repr, LAYOUTS))}. It was written by another version of"
            f" scrapy-bloom. Use that version, or {place.or_other_key}"
        )
    try:
        return _parse(fields)
    except (ArithmeticError, KeyError, ValueError) as error:
        raise StateError(
            f"{place.name}: the filter's header is damaged ({type(error).__name__}: {error})."
            f" Delete its keys ({place.key}*) to start with an empty filter, or"
            f" {place.or_other_key}"
        ) from error


def check_plan(place: Place, found: Plan, asked: Plan) -> None:
    """Refuse a filter that does not fit the options of this worker.

    The capacity may differ: it only decides when the filter grows.

    :raises StateError: if something else differs. The message names it.
    """
    differing = [
        (name, getattr(found, attribute), getattr(asked, attribute), options)
        for name, (attribute, *options) in _MUST_AGREE.items()
        if getattr(found, attribute) != getattr(asked, attribute)
    ]
    if differing:
        what = "; ".join(f"{name} {have!r}, expected {want!r}" for name, have, want, _ in differing)
        options = [place.words(option) for *_, some in differing for option in some]
        raise StateError(
            f"{place.name}: found a filter with {what}. All workers of a filter must agree, now and"
            f" later. Change {' or '.join(options) or 'the options'} of this worker, or"
            f" {place.or_other_key}"
        )


def read_slices(text: str) -> tuple[StoredSlice, ...]:
    """Return the slices that the field ``slices`` lists.

    :raises ValueError: if it lists none, or an impossible one.
    """
    slices = []
    for place, part in enumerate(text.split(" ")):
        capacity, rate, blocks, *dated = part.split(":")
        number, since, items = dated or (place, 0, capacity)
        spec = StoredSlice(
            int(capacity), float(rate), int(blocks), int(number), float(since), int(items)
        )
        if spec.capacity < 1 or not 0 < spec.error_rate < 1 or not 1 <= spec.blocks <= _MAX_BLOCKS:
            raise ValueError(f"no slice can be {part!r}")
        slices.append(spec)
    return tuple(slices)


def write_slice(spec: SliceSpec) -> str:
    """Return a slice as it stands in the field ``slices``."""
    return f"{spec.capacity}:{spec.error_rate!r}:{spec.blocks}"


def _parse(fields: Mapping[bytes, bytes]) -> Header:
    constant = {name: fields[name.encode()] for name in _CONSTANT}
    signature = fields[b"signature"].decode()
    if signature != _signature(constant):
        raise ValueError("its signature does not fit its fields")
    text = {name: value.decode() for name, value in constant.items() if name != "secret"}
    header = Header(
        plan=Plan(
            capacity=int(text["capacity"]),
            error_rate=float(text["error_rate"]),
            digests=text["digests"] == "1",
            fingerprinter=text["fingerprinter"],
            shard=int(text["shard"]),
            shards=int(text["shards"]),
            canonical=text["canonical"],
            layout=text["layout"],
            window=float(text["window"]),
        ),
        epoch=text["epoch"],
        rebuilt_of=text["rebuilt_of"],
        secret=constant["secret"],
        hashes=int(text["hashes"]),
        slices=read_slices(fields[b"slices"].decode()),
        filled=int(fields[b"filled"]),
        losses=int(fields[b"losses"]),
        forgotten=int(fields.get(b"forgotten", 0)),
        again=int(fields.get(b"again", 0)),
        signature=signature,
    )
    if not 1 <= header.hashes <= MAX_HASHES or len(header.secret) != SECRET_BYTES:
        raise ValueError(f"no filter has {header.hashes} hashes and such a secret")
    if not 0 <= header.filled <= header.slices[-1].capacity:
        raise ValueError(f"{header.filled} items in a slice of {header.slices[-1].capacity}")
    return header


def _signature(constant: Mapping[str, bytes]) -> str:
    digest = sha1(usedforsecurity=False)
    for name, value in constant.items():
        digest.update(b"%s %d " % (name.encode(), len(value)))
        digest.update(value)
    return digest.hexdigest()


def _sample(fields: Mapping[bytes, bytes]) -> str:
    names: Sequence[bytes] = sorted(fields)[:3]
    return ", ".join(_text(name) for name in names) + ", …" * (len(fields) > len(names))


def _text(value: bytes | None) -> str:
    return "missing" if value is None else repr(value.decode(errors="replace")[:40])


_MUST_AGREE: Final[Mapping[str, tuple[Any, ...]]] = {
    "an error rate of": ("error_rate", ERROR_RATE, EXACT),
    "fingerprints of": ("fingerprinter",),
    "SHA-1 fingerprints": ("digests",),
    "shard number": ("shard",),
    "a number of shards of": ("shards", REDIS_SHARDS),
    "a layout of": ("layout", REDIS_LAYOUT),
    "a window, in seconds, of": ("window", WINDOW),
}
"""For each, how a message calls it, the field of a plan and the options that choose it."""

_CONSTANT: Final = (
    "program",
    "format",
    "epoch",
    "rebuilt_of",
    "secret",
    "hashes",
    "digests",
    "capacity",
    "error_rate",
    "shard",
    "shards",
    "fingerprinter",
    "canonical",
    "layout",
    "window",
)
