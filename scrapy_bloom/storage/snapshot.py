r"""The file format of a local filter at rest.

::

    magic      16 bytes   b"scrapy-bloom\r\n\x1a\n"
    version    u16        1
    length     u32        of the header
    crc32      u32        of version, length and header
    header     JSON, UTF-8: everything but the bits and the withdrawn marks
    body       for each slice, shard by shard: a bitmap of the blocks that are stored, then these;
               then each withdrawn fingerprint: its length in bytes, u32, and its bytes;
               then each fingerprint with a date: likewise, and then the date, f64
    crc32      u32        of the body

Numbers are big-endian. A filter in Redis may be spread over shards, each with a secret and slices
of its own; a job directory cannot hold it. What is around header and body: see `frame`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, Final

from bitarray import bitarray

from scrapy_bloom._version import __version__
from scrapy_bloom.core.growth import MOST_GENERATIONS, SliceSpec
from scrapy_bloom.core.hashing import SECRET_BYTES
from scrapy_bloom.core.numbers import NumbersState
from scrapy_bloom.core.sizing import BLOCK_BITS, BLOCK_BYTES, MAX_HASHES, blocks_for
from scrapy_bloom.core.state import EMPTY, FilterState, Slice
from scrapy_bloom.errors import StateError
from scrapy_bloom.options import LONGEST, write_span
from scrapy_bloom.storage import fields
from scrapy_bloom.storage.files import open_regular, put_in_place, write_beside, write_whole
from scrapy_bloom.storage.frame import U32, Body, UnusableError, framed, read_header

_F64: Final = Struct(">d")
MOST_SHARDS: Final = 1024
MOST_SLICES: Final = 64  # each is as large as all before it: the last would hold 2^62 items
MOST_DATED: Final = MOST_SLICES * MOST_GENERATIONS
_ONE: Final = bitarray("1", "big")
_ANY: Final = 1 << 63  # larger than any number of ours
LATEST: Final = 1e12  # seconds since 1970: a date that no clock tells
_LEAST_RATE: Final = 1e-30  # smaller than any error rate of ours


@dataclass(frozen=True)
class Identity:
    """What a filter belongs to: its marks mean nothing to another spider or fingerprinter.

    Attributes:
        spider: name of the spider.
        fingerprinter: import path of the class that makes the fingerprints.
        canonical: the rules that URLs were rewritten by, and the versions of the libraries that did
            it. They may change between runs: some pages are then fetched again.
    """

    spider: str
    fingerprinter: str
    canonical: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """A filter as it was at a clean stop.

    Attributes:
        identity: what it belongs to.
        generation: how many clean stops the job has had.
        state: the filter.
        withdrawn: fingerprints that the filter holds though their requests were lost. Each is to be
            let through once.
        queue: what Scrapy's queue was at that stop, see :func:`scrapy_queue.digest`; empty if no
            request waited in it.
        others: the further shards of a filter that was spread over several of them in Redis;
            `state` is the first one. A crawl keeps no such filter in its job directory.
        written_by: name and version of the program that wrote it; empty if it is not written yet.
        journaled: whether the requests of its job are in ``requests.sqlite``.
    """

    identity: Identity
    generation: int
    state: FilterState
    withdrawn: Collection[bytes] = ()
    queue: str = ""
    others: Sequence[FilterState] = ()
    written_by: str = field(default="", compare=False)
    journaled: bool = False

    @property
    def shards(self) -> Sequence[FilterState]:
        """All shards, mostly one."""
        return (self.state, *self.others)


@dataclass(frozen=True)
class Head:
    """What can be known of a snapshot without reading the filter; as in :class:`Snapshot`."""

    identity: Identity
    generation: int
    queue: str
    journaled: bool


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Write a snapshot, whole or not at all.

    :raises OSError: if it cannot be written; an older one at `path` is still there.
    """
    write_whole(path, chunks_of(snapshot))


class PendingSnapshot:
    """A snapshot that is stored beside a crawl, in two steps; each may be taken in any thread.

    The crawl goes on adding to the blocks that it shares with the snapshot. So what is stored may
    have some marks that came later, but never lacks one.

    Attributes:
        generation: its generation.
    """

    def __init__(self, path: Path, snapshot: Snapshot) -> None:
        self.generation = snapshot.generation
        self._path = path
        state = snapshot.state
        # A list of blocks of its own: one that is touched for the first time stays out.
        slices = [replace(slice_, blocks=list(slice_.blocks)) for slice_ in state.slices]
        self._snapshot = replace(snapshot, state=replace(state, slices=slices))

    def write(self) -> None:
        """Write it to the disk under another name.

        :raises OSError: if it cannot be written.
        """
        write_beside(self._path, chunks_of(self._snapshot))

    def put_in_place(self) -> None:
        """Give it its name; the snapshot before it is gone then.

        :raises OSError: if that cannot be.
        """
        put_in_place(self._path)

    def written(self) -> Mapping[str, str | bytes]:
        """Return notes to be committed when it is written, and before it has its name: none."""
        return {}

    def placed(self) -> None:
        """Do nothing: it has its name, and the notes are committed."""


def read_snapshot(
    path: Path, identity: Identity | None = None, *, sharded: bool = False
) -> Snapshot | None:
    """Read the snapshot at `path`; return None if there is none.

    :param identity: what it must belong to; None for anything.
    :param sharded: whether it may have several shards.
    :raises StateError: if it is not ours, damaged, newer, or belongs to something other than
        `identity`. The file is not touched.
    """
    file = open_regular(path)
    if file is None:
        return None
    with file:
        try:
            snapshot = _read(file)
        except UnusableError as found:
            raise StateError(f"{path}: {found}") from None
    if snapshot.others and not sharded:
        raise StateError(
            f"{path}: found a filter of {len(snapshot.shards)} shards, expected one of a job"
            f" directory. It was left as it is. Copy it to Redis: 'scrapy bloom copy'."
        )
    if identity:
        check_identity(path, snapshot.identity, identity)
    return snapshot


def read_head(path: Path) -> Head | None:
    """Read the beginning of the snapshot at `path`; return None if there is none.

    :raises StateError: as :func:`read_snapshot`.
    """
    file = open_regular(path)
    if file is None:
        return None
    with file:
        try:
            header = read_header(file)
            return Head(
                identity_in(header),
                _read_generation(header),
                fields.text(header, "queue"),
                fields.flag(header, "journaled"),
            )
        except ValueError as error:
            found = UnusableError(f"a header that makes no sense ({error})", "one of ours")
            raise StateError(f"{path}: {found}") from None
        except UnusableError as found:
            raise StateError(f"{path}: {found}") from None


def check_identity(path: Path, stored: Identity, wanted: Identity) -> None:
    """Look whether marks that are stored mean something to a crawl.

    :raises StateError: if they belong to another spider or fingerprinter.
    """
    for what, theirs, ours in (
        ("spider", stored.spider, wanted.spider),
        ("fingerprinter", stored.fingerprinter, wanted.fingerprinter),
    ):
        if theirs != ours:
            raise StateError(
                f"{path}: found the filter of {what} {theirs!r}, expected {what} {ours!r}: its"
                f" marks mean nothing here. It was left as it is. Choose another JOBDIR, or go"
                f" back to {theirs!r}, or delete the whole job directory to start afresh."
            )


def check_window(path: Path, stored: float | None, wanted: float | None) -> None:
    """Look whether marks that are stored are kept for as long as a crawl wants.

    :raises StateError: if they were made with another window, or only one of the two has one.
    """
    if stored != wanted:
        found, expected = (None if one is None else write_span(one) for one in (stored, wanted))
        raise StateError(
            f"{path}: found a filter made with BLOOM_WINDOW = {found!r}, expected {expected!r}. It"
            f" was left as it is. Set BLOOM_WINDOW = {found!r} again, or choose another JOBDIR, or"
            f" delete this one with 'scrapy bloom delete' to start over."
        )


def chunks_of(snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the bytes of the file, at most about 8 KiB at a time."""
    state, withdrawn = snapshot.state, sorted(snapshot.withdrawn)
    header = {
        "written_by": f"scrapy-bloom {__version__}",
        "layout": state.layout,
        "identity": asdict(snapshot.identity),
        "generation": snapshot.generation,
        "secret": state.secret.hex(),
        "hashes": state.hashes,
        "digests": state.digests,
        "block_bits": BLOCK_BITS,
        "window": state.window,
        "total": state.error_rate,
        "slices": _listed(state),
        "withdrawn": len(withdrawn),
        "ages": len(state.ages),
        "queue": snapshot.queue,
        "journaled": snapshot.journaled,
        "other_shards": list(map(_as_shard, snapshot.others)),
    }
    slices = [slice_ for shard in snapshot.shards for slice_ in shard.slices]
    yield from framed(header, _body_chunks(slices, withdrawn, state.ages))


def _listed(state: FilterState) -> list[dict[str, Any]]:
    return [
        {**asdict(slice_.spec), "items": slice_.items, "since": slice_.since}
        for slice_ in state.slices
    ]


def _as_shard(state: FilterState) -> dict[str, Any]:
    return {"secret": state.secret.hex(), "slices": _listed(state)}


def _body_chunks(
    slices: Iterable[Slice], withdrawn: Iterable[bytes], ages: Mapping[bytes, float]
) -> Iterator[bytes]:
    for slice_ in slices:
        yield bitarray([block is not EMPTY for block in slice_.blocks], "big").tobytes()
        for block in slice_.blocks:
            if block is not EMPTY:
                yield block.tobytes()
    for fingerprint in withdrawn:
        yield U32.pack(len(fingerprint)) + fingerprint
    for fingerprint, last in sorted(ages.items()):
        yield U32.pack(len(fingerprint)) + fingerprint + _F64.pack(last)


def _read(file: BinaryIO) -> Snapshot:
    header = read_header(file)
    body = Body(file)
    if header.get("layout") == NumbersState.layout:
        raise UnusableError(
            "a filter of the Redis layout 'sets', which is made of numbers",
            "one that is made of bits",
            " 'scrapy bloom copy' puts it into Redis.",
        )
    try:
        if fields.text(header, "layout") != FilterState.layout:
            raise ValueError(f"a layout of {header['layout']!r}")
        first = _read_state(header, body)
        others = _read_others(header, body)
        withdrawn = _read_withdrawn(header, body)
        snapshot = Snapshot(
            identity_in(header),
            _read_generation(header),
            replace(first, ages=_read_ages(header, body)),
            withdrawn,
            fields.text(header, "queue"),
            others,
            fields.text(header, "written_by"),
            fields.flag(header, "journaled"),
        )
    except ValueError as error:
        raise UnusableError(f"a header that makes no sense ({error})", "one of ours") from error
    body.check_end()
    return snapshot


def identity_in(header: Mapping[str, Any]) -> Identity:
    """Return what a header says that its filter belongs to.

    :raises ValueError: if it does not.
    """
    identity = fields.object_(header, "identity")
    return Identity(
        fields.text(identity, "spider"),
        fields.text(identity, "fingerprinter"),
        fields.object_(identity, "canonical"),
    )


def _read_others(header: Mapping[str, Any], body: Body) -> list[FilterState]:
    """Read the shards after the first one, which differ from it in secret and slices."""
    shards = fields.objects(header, "other_shards", MOST_SHARDS - 1)
    return [_read_state({**header, **shard}, body) for shard in shards]


def _read_state(header: Mapping[str, Any], body: Body) -> FilterState:
    fields.integer(header, "block_bits", BLOCK_BITS, BLOCK_BITS)
    hashes = fields.integer(header, "hashes", 1, MAX_HASHES)
    secret = bytes.fromhex(fields.text(header, "secret"))
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes")
    window = fields.number_or_none(header, "window", 1, LONGEST)
    slices = fields.objects(header, "slices", MOST_SLICES if window is None else MOST_DATED)
    if not slices:
        raise ValueError("there are no slices")
    return FilterState(
        secret,
        hashes,
        fields.flag(header, "digests"),
        [_read_slice(slice_, hashes, body) for slice_ in slices],
        window=window,
        error_rate=None if window is None else fields.share(header, "total"),
    )


def _read_slice(slice_: Mapping[str, Any], hashes: int, body: Body) -> Slice:
    capacity = fields.integer(slice_, "capacity", 1, _ANY)
    items = fields.integer(slice_, "items", 0, capacity)
    error_rate = fields.share(slice_, "error_rate")
    # A forged number must not make the filter take far more memory than the file.
    most = 2 * blocks_for(capacity, max(error_rate, _LEAST_RATE), hashes)
    blocks = fields.integer(slice_, "blocks", 1, most)
    stored = bitarray(endian="big")
    stored.frombytes(body.read((blocks + 7) // 8))
    touched = {}
    for number in stored[:blocks].search(_ONE):
        block = touched[number] = bitarray(endian="big")
        block.frombytes(body.read(BLOCK_BYTES))
    since = fields.number_or_none(slice_, "since", 0, LATEST)
    return Slice.of(SliceSpec(capacity, error_rate, blocks), items, touched, since)


def _read_generation(header: Mapping[str, Any]) -> int:
    return fields.integer(header, "generation", 0, _ANY)


def _read_withdrawn(header: Mapping[str, Any], body: Body) -> Collection[bytes]:
    count = fields.integer(header, "withdrawn", 0, _ANY)
    return {body.read(U32.unpack(body.read(U32.size))[0]) for _ in range(count)}


def _read_ages(header: Mapping[str, Any], body: Body) -> dict[bytes, float]:
    ages = {}
    for _ in range(fields.integer(header, "ages", 0, _ANY)):
        fingerprint = body.read(U32.unpack(body.read(U32.size))[0])
        last = _F64.unpack(body.read(_F64.size))[0]
        ages[fingerprint] = fields.number({"date": last}, "date", 0, LATEST)
    return ages
