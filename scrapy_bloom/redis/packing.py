"""Requests in Redis: MessagePack, read as data, because a stranger may have written them.

What MessagePack has no type for is a map of one entry: the number of a kind of value, as an
extension type, and its arguments. The kinds are a closed table. What has a name is a class of data
(an item class, an enum, a named tuple) in a module that is imported already, and its constructor is
not called.
"""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Callable, Iterable
from copy import copy
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from types import ModuleType, NoneType
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from itemadapter import ItemAdapter
from msgpack import ExtType, Packer, unpackb
from scrapy import Request
from scrapy.utils.request import request_from_dict

from scrapy_bloom.errors import shown

if TYPE_CHECKING:
    from scrapy import Spider

_MOST: Final = 10_000  # characters of an argument, exponent of a decimal


class Refused(ValueError):  # noqa: N818 - said of a request
    """A request has more in it than data."""


def _decimal(text: str) -> Decimal:
    if abs((value := Decimal(text)).adjusted()) > _MOST:
        raise Refused(f"found the decimal {text:.40}")
    return value


def _moment(value: datetime) -> list[str]:
    if type(value.tzinfo) not in (NoneType, timezone):  # only its offset would be stored
        raise Refused(f"found a date of {value.tzinfo!r}")
    return [value.isoformat()]


_VALUES: Final[tuple[tuple[type, Callable[[Any], Any], type, Callable[..., Any]], ...]] = (
    # A type, its arguments, of which type they are. The places of rows are stored: add at the end.
    *((each, lambda it: [[*it]], list, each) for each in (tuple, set, frozenset)),
    (datetime, _moment, str, datetime.fromisoformat),
    (date, lambda it: [it.isoformat()], str, date.fromisoformat),
    (timedelta, lambda it: it.__reduce__()[1], int, timedelta),
    (Decimal, lambda it: [str(it)], str, _decimal),
    (UUID, lambda it: [it.hex], str, UUID),
)
_MARK: Final = b"\xc7"  # begins each extension type that is written
_CLASS, _OBJECT = ExtType(0, b""), ExtType(1, b"")
_KEYS: Final = {row[0]: (ExtType(at, b""), row[1]) for at, row in enumerate(_VALUES, 2)}
_new: Any = copyreg.__newobj__  # type: ignore[attr-defined]


class _Reduced:
    """An object as pickle takes it apart: a copy of this is the object."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __reduce_ex__(self, _: object) -> Any:
        return self._parts


class Packing:
    """How requests are written, and read again."""

    def __init__(self) -> None:
        self._packer = Packer(
            default=self._write, strict_types=True, unicode_errors="surrogatepass"
        )
        self._is_plain = True

    def request(self, body: bytes, spider: Spider) -> Request:
        """Read a request.

        :raises Refused: if it has more in it than data.
        :raises Exception: whatever else its contents raise.
        """
        return request_from_dict(self.fields(body), spider=spider)

    def fields(self, body: bytes) -> dict[str, Any]:
        """Return a request as a dict. Raises what :meth:`request` raises."""
        fields = read(body, _named)
        if "_class" in fields:  # Scrapy would import any, and call it
            path = ":".join(str(fields["_class"]).rsplit(".", 1))
            if not issubclass(_look_up(path) or object, Request):
                raise _refusal(path)
        return fields

    def write(self, fields: dict[str, Any]) -> bytes:
        """Serialize a request.

        :raises Refused: if it could not be read again.
        :raises Exception: if it cannot be serialized, or whatever else reading it raises.
        """
        self._is_plain = "_class" not in fields
        body: bytes = self._packer.pack(fields)
        for name in ("meta", "cb_kwargs"):
            _refuse_buffers(fields.get(name, {}).values())
        if not self._is_plain:
            self.fields(body)
        return body

    def _write(self, value: Any) -> Any:
        """Return what stands for a value that MessagePack has no type for."""
        of = type(value)
        if of.__module__ == "lxml.etree" and isinstance(value, str):
            return str(value)  # the text of a link, which the rules of a CrawlSpider put into meta
        self._is_plain &= of is tuple  # all others may be refused when they are read
        if of in _KEYS:
            key, take_apart = _KEYS[of]
            _refuse_buffers(parts := [*take_apart(value)])
            return {key: parts}
        if isinstance(value, type):
            return {_CLASS: _path(value)}
        if isinstance(value, Enum):
            return {_OBJECT: [of, value.value if isinstance(value, Flag) else value.name]}
        if not _is_data(of, _path(of)):  # asked first: what a large integer is made of is one, too
            raise _refusal(_path(of))
        maker, arguments, *rest = value.__reduce_ex__(4)
        if maker is not _new or any(each is not None for each in rest[1:]):
            raise _refusal(_path(of))
        _refuse_buffers([*arguments[1:], *rest[:1]])
        return {_OBJECT: [of, [*arguments[1:]], *rest[:1]]}


def _named(kind: ExtType, parts: Any) -> Any:
    """Return a class that may be named, or an object of one."""
    if kind == _OBJECT:
        return _object(*parts)
    if _is_data(found := _look_up(parts), parts):
        return found
    raise _refusal(parts)


def _object(of: Any, arguments: Any, state: Any = None) -> Any:
    """Make an object; nothing fills it but its state.

    :param arguments: of an enum, the name of a member, or the value of a flag.
    """
    if not isinstance(of, type):
        raise Refused("found something else than an object")
    if issubclass(of, Enum) and state is None:
        return of(arguments) if issubclass(of, Flag) else of.__members__[arguments]
    if issubclass(of, Enum) or type(arguments) is not list:
        raise _refusal(_path(of))
    made = copy(_Reduced(_new, (of, *arguments), state))
    own = getattr(made, "__dict__", {})
    if any(map(callable, own.values())):  # it would be called instead of a method
        raise _refusal(_path(of))
    return made


def _refuse_buffers(values: Iterable[Any]) -> None:
    """Refuse what MessagePack would write as bytes, without asking what it is."""
    for value in values:
        of = type(value)
        if of in (bytearray, memoryview):
            raise Refused(f"a {of.__name__} would come back as bytes")
        if of is dict:
            _refuse_buffers(value.values())
        elif of is list:
            _refuse_buffers(value)


def read(body: bytes, named: Callable[[ExtType, Any], Any] | None = None) -> dict[str, Any]:
    """Return a request as a dict. Raises whatever its contents raise.

    :param named: makes what has a name; without it, None stands for that.
    """

    def made(found: dict[Any, Any]) -> Any:
        if len(found) != 1:
            return found
        ((kind, arguments),) = found.items()
        if type(kind) is not ExtType:
            return found
        if kind in (_CLASS, _OBJECT):
            return named and named(kind, arguments)
        of, _, each, make = _VALUES[kind.code - 2]
        if type(arguments) is not list or {*map(type, arguments)} != {each}:
            raise Refused(f"found something else than a {of.__name__}")
        if each is str and max(map(len, arguments)) > _MOST:
            raise Refused(f"found a {of.__name__} of more than {_MOST:,} characters")
        return make(*arguments)

    hook = made if _MARK in body else None  # most requests need none, and are read faster
    fields = unpackb(body, object_hook=hook, strict_map_key=False, unicode_errors="surrogatepass")
    if type(fields) is not dict:
        raise Refused("found something else than a request")
    return fields


def _is_data(found: Any, path: str) -> bool:
    """Return whether this is a class of data, and has this path."""
    if not isinstance(found, type) or issubclass(found, dict) or _path(found) != path:
        return False
    is_named_tuple = issubclass(found, tuple) and hasattr(found, "_fields")
    is_item = ItemAdapter.is_item_class(found) or path == "scrapy_playwright.page:PageMethod"
    return is_named_tuple or is_item or issubclass(found, Enum)


def _path(of: Any) -> str:
    return f"{of.__module__}:{of.__qualname__}"


def _look_up(path: str) -> Any:
    """Return a class of a module; None if that is not imported, or has none of this name.

    Neither runs any code: some modules import others when they are asked for an attribute.
    """
    module, _, name = path.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        if type(found) is not ModuleType and not isinstance(found, type):
            return None
        found = vars(found).get(part)
    return found if isinstance(found, type) else None


def _refusal(path: Any) -> Refused:
    name = shown(str(path).replace(":", "."))
    return Refused(f"it names {name}: only items, enums and named tuples that hold data are stored")
