"""What a stranger writes is read as data, or not at all; what crawls write comes through equal."""

import copyreg
import marshal
import pickle
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from pathlib import Path, PurePosixPath, PureWindowsPath
from urllib.parse import urlsplit
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import FormRequest, Request, Spider
from scrapy.http import JsonRequest
from support import kinds
from support.kinds import RAN, Color, Flags, Language

from scrapy_bloom.crawl.failed import Failed
from scrapy_bloom.crawl.history import ORIGINAL
from scrapy_bloom.crawl.outcomes import Reason
from scrapy_bloom.crawl.reading import Reading, Refused
from scrapy_bloom.errors import SettingError

KINDS = "support.kinds"
EXTENSION = 201


@pytest.fixture(autouse=True)
def _nothing_ran():
    RAN.clear()
    yield
    RAN.clear()


def book(title="?"):
    item = kinds.Book()
    item["title"] = title
    return item


GOOD = {
    "item": book(),
    "dataclass": kinds.Page(2),
    "frozen dataclass with slots": kinds.Point(2),
    "item in an item": kinds.Page([book(), {"a": kinds.Point(kinds.Page())}]),
    "attrs": kinds.Author("x"),
    "attrs without slots": kinds.Shop("x"),
    "nested class": kinds.Outer.Part(3),
    "nested enum": kinds.Outer.Inner.X,
    "enum": Color.RED,
    "string enum": Language.ENGLISH,
    "flags": Flags.A | Flags.B,
    "enum of the library": HTTPStatus.OK,
    "class of items": kinds.Book,
    "named tuple": kinds.Pair(1, book()),
    "typed named tuple": kinds.Single([1]),
    "named tuple of the library": urlsplit("http://example.com/a?b"),
    "zone": ZoneInfo("Europe/Berlin"),
    "time in a zone": datetime(2026, 1, 2, tzinfo=ZoneInfo("Asia/Tokyo")),
    "time in UTC": datetime(2026, 1, 2, tzinfo=timezone.utc),
    "time with an offset": datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=1), "X")),
    "date": date(2026, 1, 2),
    "time of day": time(1, 2),
    "span": timedelta(1, 2, 3),
    "decimal": Decimal("1.20"),
    "fraction": Fraction(1, 3),
    "complex": 1 + 2j,
    "range": range(1, 10, 2),
    "uuid": UUID(int=1 << 100),
    "path": Path("/a/b"),
    "pure path": PurePosixPath("a"),
    "path of Windows": PureWindowsPath("c:/a"),
    "ordered dict": OrderedDict(a=1, b=book()),
    "default dict": defaultdict(list, a=[1]),
    "default dict without one": defaultdict(None, {"a": Color.RED}),
    "counter": Counter("abca"),
    "deque": deque([1, Color.RED], 5),
    "address": ip_address("1.2.3.4"),
    "address 6": ip_address("::1"),
    "network": ip_network("10.0.0.0/8"),
    "set": {1, Color.RED, kinds.Point()},
    "frozen set": frozenset({Language.ENGLISH}),
    "bytes": bytearray(b"x"),
    "plain": {"a": [1, 2.5, None, True, "\u2013", b"\x93", (), {1}, 1 << 100]},
}


@pytest.mark.parametrize("kind", GOOD)
def test_what_requests_carry_comes_through_equal(kind):
    value, reading = GOOD[kind], Reading()
    fields = Request("http://example.com", meta={"x": value}, cb_kwargs={"x": [value]}).to_dict()
    read = reading.fields(reading.write(fields))
    assert read == fields
    for each in (read["meta"]["x"], read["cb_kwargs"]["x"][0]):
        assert type(each) is type(value)
    assert reading.fields(pickle.dumps(fields, 5)) == fields  # as scrapy-redis writes


zones = st.sampled_from([None, timezone.utc, ZoneInfo("Europe/Berlin")])
hashable = st.one_of(
    st.text(),
    st.binary(),
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),
    st.dates(),
    st.datetimes(timezones=zones),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.uuids(),
    st.ip_addresses(),
    st.sampled_from([*Color, *Language, Flags.A | Flags.B, Path("/x")]),
    st.builds(kinds.Point, st.integers()),
)
values = st.recursive(
    hashable,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.lists(inner).map(deque),
        st.dictionaries(hashable, inner),
        st.dictionaries(hashable, inner).map(OrderedDict),
        st.dictionaries(hashable, inner).map(lambda some: defaultdict(list, some)),
        st.sets(hashable),
        st.frozensets(hashable),
        st.builds(book, inner),
        st.builds(kinds.Page, inner),
        st.builds(kinds.Author, inner),
        st.builds(kinds.Pair, inner, inner),
    ),
    max_leaves=12,
)


@given(value=values)
def test_any_of_them_in_any_other_comes_through_equal(value):
    reading = Reading()
    fields = {"url": "http://example.com", "meta": {"x": value, "again": value}}
    assert reading.fields(reading.write(fields)) == fields


# What a stranger writes


def text(words):
    return pickle.BINUNICODE + len(words.encode()).to_bytes(4, "little") + words.encode()


def named(module, name):
    return text(module) + text(name) + pickle.STACK_GLOBAL


def ours(name):
    return named(KINDS, name)


def made(name, state=b"", args=b")"):
    """An instance without its constructor, and with a state."""
    return ours(name) + args + pickle.NEWOBJ + (state and state + pickle.BUILD)


def entry(key, value):
    return b"}" + text(key) + value + b"s"


RUN, ONE = ours("run"), text("argument") + b"\x85"
NOTING = ours("Noting")

RUNS = {  # each by pickle.loads
    "a call": RUN + ONE + b"R",
    "a call of a text opcode": b"csupport.kinds\nrun\n" + ONE + b"R",
    "a call of old times": b"(" + text("argument") + b"isupport.kinds\nrun\n",
    "a call of an instance's making": b"(" + RUN + text("argument") + b"o",
    "the constructor of an item class": NOTING + ONE + b"R",
    "the constructor of a class by an old opcode": b"(" + NOTING + text("argument") + b"o",
    "the making of a class": ours("Fresh") + b")" + pickle.NEWOBJ,
    "the making of a class by names": ours("Fresh") + b")" + entry("a", ONE) + pickle.NEWOBJ_EX,
    "an extension": pickle.EXT1 + bytes([EXTENSION]) + ONE + b"R",
    "a name out of the memo": RUN + b"\x940h\x00" + ONE + b"R",
    "a name out of a numbered memo": RUN + b"q\x050h\x05" + ONE + b"R",
    "a name out of a text memo": RUN + b"p5\n0g5\n" + ONE + b"R",
    "a doubled name": RUN + b"20" + ONE + b"R",
    "a name made of a state": b"]" + RUN + b"a0" + RUN + ONE + b"R",
    "a constructor as append": made("Page", entry("append", NOTING)) + text("argument") + b"a",
    "a constructor as extend": made("Page", entry("extend", NOTING)) + b"(Ne",
    "a constructor as add": made("Page", entry("add", NOTING)) + b"(N" + pickle.ADDITEMS,
    "a constructor as __setstate__": made("Page", entry("__setstate__", NOTING)) + b"}b",
    "an item that is filled": made("Filling") + text("key") + text("value") + b"s",
    "items that are filled": made("Filling") + b"(" + text("key") + text("value") + b"u",
    "a constructor as keys": named("collections", "OrderedDict")
    + made("Page", entry("keys", NOTING)) + b"\x85R",
    "a function of the module": named("builtins", "getattr") + ours("Page") + text("__init__")
    + b"\x86R0" + RUN + ONE + b"R",
    "a module that is asked": ours("Lazy"),
}  # fmt: skip

LOADS = {  # more than data, or more of it than was written
    "a command": named("os", "system") + text("exit 1") + b"\x85R",
    "a command in a project's reach": ours("Popen") + text("true") + b"\x85R",
    "a command by an attribute": ours("subprocess.Popen") + text("true") + b"\x85R",
    "a method": ours("Book.__init__"),
    "the globals of a function": ours("run.__globals__"),
    "eval": named("builtins", "eval") + text("1") + b"\x85R",
    "an import": named("builtins", "__import__") + text("antigravity") + b"\x85R",
    "a module that is not imported": named("antigravity", "Page"),
    "an attribute": named("builtins", "getattr") + b"K\x01" + text("real") + b"\x86R",
    "what a zone has": named("builtins", "getattr") + named("zoneinfo", "ZoneInfo")
    + text("clear_cache") + b"\x86R)R",
    "what an enum has": named("builtins", "getattr") + ours("Color") + text("mro") + b"\x86R",
    "a constructor as a factory": named("collections", "defaultdict") + NOTING + b"\x85R",
    "a constructor as __new__": made("Page", entry("__new__", NOTING)) + b")" + pickle.NEWOBJ,
    "a size of bytes": named("builtins", "bytes") + b"J\xff\xff\xff\x0f\x85" + pickle.NEWOBJ,
    "a size of bytes by a name": named("builtins", "bytes") + b")"
    + entry("source", b"J\xff\xff\xff\x0f") + pickle.NEWOBJ_EX,
    "another name of a class": ours("Alias"),
    "a partial call": named("functools", "partial") + RUN + b"\x85R",
    "a size": named("builtins", "bytearray") + b"J\xff\xff\xff\x0f\x85R",
    "a range into a deque": named("collections", "deque") + named("builtins", "range")
    + b"J\xff\xff\x0f\x00\x85R\x85R",
    "a factory that is called": named("builtins", "list") + b")R",
    "an enum's making": named("enum", "Enum") + text("X") + text("A B") + b"\x86R",
    "an enum by its name": ours("Color") + text("RED") + text("X") + b"\x86R",
    "a state of a made member": ours("Color") + b"K\x01\x85" + pickle.NEWOBJ
    + entry("other", b"N") + b"b",
    "a state of a member": ours("Color") + b"K\x01\x85R" + entry("other", b"N") + b"b",
    "a state of a class": ours("Page") + b"N" + entry("other", b"K\x01") + b"\x86b",
    "a state of a path": named("pathlib", "PurePosixPath") + b")R" + entry("x", b"N") + b"b",
    "a second state": made("Page", entry("number", b"N")) + b"}b",
    "an attribute that can be called": made("Page", entry("keys", NOTING)),
    "one that comes later": made("Sharing", b"}\x94") + b"0h\x00" + text("keys") + NOTING + b"s0"
    + b"}",
    "a pickled function": RUN,
    "a class without data": made("Plain"),
    "a class of types": named("builtins", "type"),
    "the base of all": named("builtins", "object") + b")" + pickle.NEWOBJ,
    "what undoes the base": named("copyreg", "_reconstructor") + ours("Plain")
    + named("builtins", "object") + b"N\x87R",
    "a persistent name": text("x") + pickle.BINPERSID,
    "a persistent name in text": b"Px\n",
    "a buffer": pickle.NEXT_BUFFER,
    "an unknown extension": pickle.EXT4 + b"\x10\0\0\0",
    "an unknown opcode": b"\xff",
    "nothing on the stack": b"R",
    "nothing to fill": b"a",
    "nothing to make": pickle.NEWOBJ,
    "names that are no text": b"K\x01K\x02" + pickle.STACK_GLOBAL,
    "arguments that are no tuple": named("datetime", "timedelta") + b"]K\x01aR",
    "a frame without an end": pickle.FRAME + (1 << 62).to_bytes(8, "little"),
    "bytes without an end": pickle.BINBYTES8 + (1 << 62).to_bytes(8, "little"),
    "a text without an end": pickle.BINUNICODE8 + (1 << 62).to_bytes(8, "little"),
    "a memo that is empty": b"h\x07",
    "a later protocol": b"\x80\x63",
}  # fmt: skip


def bodies(payload):
    """Yield requests with this in them: alone, beside a name, and as the whole request."""
    start = b"\x80\x04}"
    yield start + text("meta") + payload + b"s."
    yield start + text("x") + ours("Color") + b"s" + text("meta") + payload + b"s."
    yield b"\x80\x04" + payload + b"."


@pytest.fixture
def extension():
    copyreg.add_extension(KINDS, "run", EXTENSION)
    yield
    copyreg.remove_extension(KINDS, "run", EXTENSION)


@pytest.mark.usefixtures("extension")
@pytest.mark.parametrize("kind", RUNS)
def test_nobody_who_writes_a_request_runs_code(kind):
    for body in bodies(RUNS[kind]):
        RAN.clear()
        with suppress(Exception):
            pickle.loads(body)
        assert RAN, "the payload is no attack"
        RAN.clear()
        with pytest.raises(pickle.UnpicklingError):
            Reading().fields(body)
        assert not RAN


@pytest.mark.parametrize("kind", LOADS)
def test_what_is_more_than_data_is_refused(kind):
    for body in bodies(LOADS[kind]):
        with pytest.raises(Exception):  # noqa: B017, PT011 - some of it is only damaged
            Reading().fields(body)
    assert not RAN
    assert "antigravity" not in sys.modules
    assert not hasattr(kinds.Page, "other")
    assert not hasattr(Color.RED, "other")
    assert [*Color] == [Color.RED]


@pytest.mark.parametrize("extra", [b"", ours("Color") + b"0"], ids=["plain", "with a name"])
def test_what_is_nested_deeply_is_read_or_not(extra):
    deep = b"]" * 200_000 + b"a" * 199_999
    body = b"\x80\x04" + extra + b"}" + text("meta") + deep + b"s."
    assert [*Reading().fields(body)] == ["meta"]


@pytest.mark.parametrize(
    "body",
    [b".", marshal.dumps({"url": "http://example.com"}), pickle.dumps({"url": "x"}, 0)],
    ids=["end", "marshal", "protocol 0"],
)
def test_nothing_but_pickles_is_decoded(body):
    with pytest.raises(Refused, match="something else than a pickle"):
        Reading().fields(body)


def test_nothing_but_a_dict_is_a_request():
    with pytest.raises(Refused, match="something else than a request"):
        Reading().fields(pickle.dumps(["_class"], 4))


@pytest.mark.usefixtures("extension")
def test_what_is_written_by_an_extension_is_found_out_when_it_is_written():
    with pytest.raises(Refused):
        Reading().write({"url": "http://example.com", "meta": {"x": kinds.run}})


# The class of a request


@pytest.mark.parametrize("kind", [kinds.Form, FormRequest, JsonRequest])
def test_a_request_of_another_class_is_read(kind):
    reading = Reading()
    body = reading.write(kind("http://example.com", meta={"a": 1}).to_dict())
    read = reading.request(body, Spider("x"))
    assert (type(read), read.meta) == (kind, {"a": 1})


@pytest.mark.parametrize(
    "path", ["antigravity.Request", "subprocess.Popen", f"{KINDS}.Lazy", f"{KINDS}.Book", "x", 1]
)
def test_no_class_of_a_request_is_imported_or_called(path):
    with pytest.raises(Refused, match=str(path).rpartition(".")[2]):
        Reading().request(pickle.dumps({"url": "http://x", "_class": path}, 4), Spider("x"))
    assert not RAN
    assert "antigravity" not in sys.modules


def test_a_class_that_is_none_of_a_module_is_found_out_when_it_is_written():
    class Hidden(Request):
        pass

    with pytest.raises(Refused, match="Hidden"):
        Reading().write(Hidden("http://example.com").to_dict())


# What is listed


LISTED = [f"{KINDS}.{name}" for name in ("Plain", "Keywords", "Many", "Called", "Noting")]


@pytest.mark.parametrize(
    "value",
    [kinds.Plain(1), kinds.Keywords(value=2), kinds.Many([1, 2]), kinds.Called(3)],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_read_again_is_found_out_when_it_is_written_unless_it_is_listed(value):
    fields = {"url": "http://example.com", "meta": {"x": [value]}}
    name = f"{KINDS}.{type(value).__name__}"
    with pytest.raises(Refused, match=f"'{name}'.*: list that in BLOOM_REDIS_CLASSES"):
        Reading().write(fields)
    reading = Reading(tuple(LISTED))
    read = reading.fields(reading.write(fields))
    assert read == fields
    assert vars(read["meta"]["x"][0]) == vars(value)


def test_what_holds_a_class_is_found_out_as_well():
    fields = {"url": "http://example.com", "meta": {"x": kinds.Page(kinds.Book)}}
    with pytest.raises(Refused, match=f"'{KINDS}.Page', and has something to be called"):
        Reading().write(fields)
    reading = Reading((f"{KINDS}.Page",))
    assert reading.fields(reading.write(fields)) == fields


def test_functions_are_listed_as_well():
    reading = Reading((f"{KINDS}.run",))
    assert reading.fields(b"\x80\x04}" + text("meta") + RUN + ONE + b"Rs.") == {"meta": RAN}


@pytest.mark.parametrize("path", ["antigravity_.X", f"{KINDS}.Nothing", f"{KINDS}.RAN"])
def test_what_cannot_be_imported_is_refused_at_once(path):
    with pytest.raises(SettingError, match=f"BLOOM_REDIS_CLASSES has '{path}'"):
        Reading((path,))


def test_a_usual_request_is_not_read_when_it_is_written(monkeypatch):
    reading = Reading()
    monkeypatch.setattr(reading, "fields", None)
    body = reading.write(Request("http://example.com", meta={"depth": 3}).to_dict())
    assert pickle.loads(body)["meta"] == {"depth": 3}


# The failed list


def test_a_request_in_redis_that_has_failed_is_read_as_strictly():
    reading, failure = Reading(), Reason("500")
    hostile = next(bodies(RUNS["a call"]))
    carrier = pickle.dumps({"url": "http://x", "meta": {ORIGINAL: hostile}}, 4)
    for body in (hostile, carrier):  # listed as it is, to be refused once more
        assert Failed.of(body, failure, 0.0, read=reading.fields).body == body
    with pytest.raises(Refused):
        Failed("500", "", 0.0, 1, "", hostile).retried(read=reading.fields)
    assert not RAN
    good = reading.write({"url": "http://x", "meta": {"x": Color.RED}})
    failed = Failed.of(good, failure, 0.0, read=reading.fields)
    assert reading.fields(failed.retried(read=reading.fields).body) == reading.fields(good)
