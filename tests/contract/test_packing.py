"""What a stranger writes is read as data, or not at all; what crawls write comes through equal."""

import re
import sys
from collections import Counter, OrderedDict, deque
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from http import HTTPStatus
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import FormRequest, Request, Spider
from scrapy.http import JsonRequest, XmlRpcRequest
from support import kinds
from support.kinds import RAN, Color, Flags, Language

from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.crawl.history import ORIGINAL
from scrapy_bloom.crawl.outcomes import Reason
from scrapy_bloom.redis.packing import _VALUES, Packing, Refused, read

KINDS = "support.kinds"


@pytest.fixture(autouse=True)
def _nothing_ran():
    RAN.clear()
    yield
    RAN.clear()


def carrying(value):
    return {"url": "http://example.com", "meta": {"x": value}}


def there_and_back(fields):
    """Return a request as a worker reads what another one has written."""
    packing = Packing()
    return packing.fields(packing.write(fields))


def book():
    item = kinds.Book()
    item["title"] = "?"
    return item


SHOP, ITEMS = kinds.Shop("x"), kinds.Page([book(), {"a": kinds.Point(kinds.Page())}])
MANY = kinds.Many()
MANY.append(1)
AN_HOUR = timezone(timedelta(hours=1))
RIGHTS = kinds.Rights.READ | kinds.Rights.WRITE
GOOD = {
    "items": [book(), kinds.Page(2), kinds.Point(2), kinds.Author("x"), SHOP, ITEMS, kinds.Book],
    "nested classes": [kinds.Outer.Part(3), kinds.Outer.Inner.X],
    "enums": [Color.RED, Language.ENGLISH, HTTPStatus.OK],
    "flags": [Flags.A | Flags.B, RIGHTS, kinds.Rights(0), re.IGNORECASE | re.MULTILINE],
    "named tuples": [kinds.Pair(1, book()), kinds.Single([1]), urlsplit("http://example.com/a?b")],
    "times": [datetime(2026, 1, 2, 3, 4, 5, 6, zone) for zone in (None, AN_HOUR, timezone.utc)],
    "days, spans and others": [date(2026, 1, 2), timedelta(1, 2, 3), UUID(int=1 << 100), "\ud800"],
    "numbers": [Decimal("1.20"), 2**64 - 1, -(2**63)],
    "sets": [{1, Color.RED, kinds.Point()}, frozenset({Language.ENGLISH})],
    "keys": [{(1, (2,)): 1, date(2026, 1, 2): 2, None: 3, 4: 5, b"\xc7": 6}],
    "one entry": [{"a": 1}, {1: {}}, {(): ()}],
    "plain": [{"a": [1, 2.5, None, True, "\u2013", b"\x93", (), {1}, 1 << 60]}],
}


@pytest.mark.parametrize("kind", GOOD)
def test_what_requests_carry_comes_through_equal(kind):
    for value in GOOD[kind]:
        fields = {**carrying(value), "cb_kwargs": {"x": [value]}}
        there = there_and_back(fields)
        assert there == fields
        for each in (there["meta"]["x"], there["cb_kwargs"]["x"][0]):
            assert type(each) is type(value)
        assert read(Packing().write(fields))["url"] == fields["url"]  # whatever it names


plain = st.one_of(st.text(), st.binary(), st.integers(-(2**63), 2**64 - 1), st.datetimes())
plain |= st.one_of(st.timedeltas(), st.decimals(allow_nan=False), st.dates(), st.uuids())
plain |= st.floats(allow_nan=False)
around = kinds.Page, kinds.Author, lambda one: [one], lambda one: (one, one), lambda one: {1: one}
values = st.recursive(
    plain | st.sampled_from([value for some in GOOD.values() for value in some]),
    lambda inner: st.one_of(st.builds(each, inner) for each in around),
    max_leaves=12,
)


@given(value=values, key=plain)
def test_any_of_them_in_any_other_comes_through_equal(value, key):
    fields = carrying([value, value, {key: 1}])
    assert there_and_back(fields) == fields


@pytest.mark.parametrize("value", [bytearray(b"x"), memoryview(b"x")])
def test_what_would_come_back_as_bytes_is_refused_wherever_it_is(value):
    for holds in (lambda one: one, lambda one: [{1: (one,)}], kinds.Page, kinds.Author):
        for place in ("meta", "cb_kwargs"):
            with pytest.raises(Refused, match=f"a {type(value).__name__} would"):
                Packing().write({"url": "http://example.com", place: {"x": holds(value)}})


# What a stranger writes


def kind(of):
    """Return what a value of this kind begins with."""
    codes = {row[0]: code for code, row in enumerate(_VALUES, 2)}
    return msgpack.ExtType(codes.get(of, of), b"")


CLASS, OBJECT = kind(0), kind(1)


def named(path):
    return {CLASS: path}


def ours(name):
    return named(f"{KINDS}:{name}")


def made(name, *rest, arguments=()):
    """An instance, its state and what it is filled with."""
    return {OBJECT: [ours(name), arguments, *rest]}


def packed(value):
    return msgpack.packb({"url": "http://x", "meta": {"x": value, "y": ours("Color")}})


BAD = {
    "a function": ours("run"),
    "a call": made("run", arguments=[1]),
    "a call of a text": {OBJECT: ["os.system", ["exit 1"]]},
    "a command": {OBJECT: [named("os:system"), ["exit 1"]]},
    "a command in a project's reach": made("Popen", arguments=[["true"]]),
    "a command by an attribute": made("subprocess.Popen", arguments=[["true"]]),
    "the making of a class": made("Fresh"),
    "a method": ours("Book.__init__"),
    "the globals of a function": ours("run.__globals__"),
    "a module that is asked": ours("Lazy"),
    "a module that is not imported": named("antigravity:Page"),
    "another name of a class": ours("Alias"),
    "a class without data": made("Plain"),
    "a class of types": named("builtins:type"),
    "the base of all": {OBJECT: [named("builtins:object"), []]},
    "a constructor as a method": made("Page", {"keys": ours("Noting")}),
    "a constructor as a method by slots": made(
        "Page", {kind(tuple): [[None, {"keys": ours("Noting")}]]}
    ),
    "an item that is filled": made("Filling", {}, [], [["key", "value"]]),
    "a member by its making": made("Color", arguments=[1]),
    "a state of a member": made("Color", {"other": 1}, arguments="RED"),
    "an attribute of an enum": made("Color", arguments="mro"),
    "a member of what is no enum": made("Page", arguments="x"),
    "a state without a name": {OBJECT: [1, [], {"x": 1}]},
    "nothing to make": {OBJECT: []},
    "no object": {OBJECT: 1},
    "an unknown kind": {kind(99): []},
    "arguments that are no list": {kind(tuple): {}},
    # Each of these takes hours or all memory if it is made.
    "a decimal that is large": {kind(Decimal): ["1e30000000"]},
    "a decimal that is small": {kind(Decimal): ["1e-30000000"]},
    "a decimal that is long": {kind(Decimal): ["1" * 100_000]},
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_nobody_who_writes_a_request_makes_more_than_data(what):
    body = packed(BAD[what])
    with pytest.raises(Exception):  # noqa: B017, PT011 - some of it is only damaged
        Packing().fields(body)
    with suppress(Exception):
        assert read(body)["meta"] == {"x": None, "y": None}
    assert not RAN
    assert "antigravity" not in sys.modules
    assert not hasattr(Color.RED, "other")
    assert [*Color] == [Color.RED]


@pytest.mark.parametrize(
    "body",
    [
        *(b"\x81\xa4meta" + deep * 200_000 for deep in (b"\x91", b"\x81\xc7\0\x02\x91\x91")),
        *(b"\x81\xa4meta" + huge + b"\xff" * 4 for huge in (b"\xdd", b"\xdf", b"\xdb", b"\xc6")),
        *(b"", b"\xc1", b"\x80\x04", b"\x91\xa1x", b"\x81\xc7\0\x02\x91\x90"),
    ],
)
def test_what_is_damaged_nested_deeply_or_no_request_is_an_error(body):
    for reading in (Packing().fields, read):
        with pytest.raises(ValueError):  # noqa: PT011 - the library's are all derived from it
            reading(body)


def test_what_contains_itself_cannot_be_written():
    packing, around = Packing(), []
    around.append((around,))
    with pytest.raises((ValueError, RecursionError)):
        packing.write(carrying(around))
    assert packing.fields(packing.write(carrying(1))) == carrying(1)


# The class of a request


@pytest.mark.parametrize(
    ("of", "given"),
    [
        (kinds.Form, {}),
        (FormRequest, {"formdata": {"a": ["1", "\u2013"]}}),
        (JsonRequest, {"data": {"a": [1, None]}, "dumps_kwargs": {"sort_keys": True}}),
        (XmlRpcRequest, {"methodname": "add", "params": (1, "\u2013")}),
    ],
)
def test_a_request_of_another_class_comes_through_equal(of, given):
    packing = Packing()
    request = of("http://example.com", meta={"a": 1}, **given)
    made = packing.request(packing.write(request.to_dict()), Spider("x"))
    assert type(made) is of
    assert made.to_dict() == request.to_dict()


@pytest.mark.parametrize(
    "path", ["antigravity.Request", "subprocess.Popen", f"{KINDS}.Lazy", f"{KINDS}.Book", "x", 1]
)
def test_no_class_of_a_request_is_imported_or_called(path):
    with pytest.raises(Refused, match=str(path).rpartition(".")[2]):
        Packing().request(msgpack.packb({"url": "http://x", "_class": path}), Spider("x"))
    assert not RAN
    assert "antigravity" not in sys.modules


def test_a_class_that_is_none_of_a_module_is_found_out_when_it_is_written():
    class Hidden(Request):
        pass

    with pytest.raises(Refused, match="Hidden"):
        Packing().write(Hidden("http://example.com").to_dict())


# What is no data


@pytest.mark.parametrize(
    "value",
    [
        *(kinds.Plain(1), kinds.Called(2), MANY),
        kinds.Page(kinds.Book),  # it holds what would be called
        *(Path("/a"), Fraction(1, 3), 1 + 2j, 1 << 64, range(3), time(1, 2), ZoneInfo("UTC")),
        *(datetime(2026, 1, 2, tzinfo=ZoneInfo("UTC")), OrderedDict(a=1), Counter("a"), deque([1])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_read_again_is_found_out_when_it_is_written(value):
    with pytest.raises(Refused, match=type(value).__name__ + "|UTC"):
        Packing().write(carrying([value]))


def test_what_a_page_does_for_playwright_goes_through_redis(monkeypatch):
    module = ModuleType("scrapy_playwright.page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    made_of = dict(kinds.Plain.__dict__, __module__=module.__name__, __qualname__="PageMethod")
    made_of.pop("__dict__"), made_of.pop("__weakref__")
    module.PageMethod = type("PageMethod", (), made_of)
    fields = carrying([module.PageMethod("click")])
    assert there_and_back(fields) == fields


def test_a_usual_request_is_not_read_when_it_is_written(monkeypatch):
    packing = Packing()
    monkeypatch.setattr(packing, "fields", None)
    body = packing.write(Request("http://example.com", meta={"depth": 3, "x": (1,)}).to_dict())
    assert read(body)["meta"] == {"depth": 3, "x": (1,)}


# The failed list


def test_a_request_in_redis_that_has_failed_is_read_as_strictly():
    packing, failure = Packing(), Reason("500")
    by = {"read": packing.fields, "write": packing.write}
    hostile = packed(BAD["a call"])
    carrier = packing.write({"url": "http://x", "meta": {ORIGINAL: hostile}})
    for body in (hostile, carrier):  # listed as it is, to be refused once more
        assert FailedPage.of(body, failure, 0.0, **by).body == body
    with pytest.raises(Refused):
        FailedPage("500", "", 0.0, 1, "", unparsed=False, way=(), body=hostile).retried(**by)
    assert not RAN
    good = packing.write(carrying(Color.RED))
    failed = FailedPage.of(good, failure, 0.0, **by)
    assert packing.fields(failed.retried(**by).body) == packing.fields(good)
