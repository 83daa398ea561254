"""Requests in Redis: MessagePack, read as data, because a stranger may have written them.

What MessagePack has no type for is a map of one entry: the number of a kind of value, as an
extension type, and its arguments. The kinds are a closed table. What has a name is a class of data
(an item class, an enum, a named tuple) in a module that is imported already, and its constructor is
not called; or ``BLOOM_REDIS_CLASSES`` lists it.
"""

from __future__ import annotations

import copyreg
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from copy import copy
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import ModuleType, NoneType
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from itemadapter import ItemAdapter
from msgpack import ExtType, Packer, unpackb
from scrapy import Request
from scrapy.utils.misc import load_object
from scrapy.utils.request import request_from_dict

from scrapy_bloom.errors import SettingError, shown
from scrapy_bloom.settings import REDIS_CLASSES

if TYPE_CHECKING:
    from scrapy import Spider

_MOST: Final = 10_000  # characters of an argument, exponent of a decimal
_FACTORIES: Final = (None, list, dict, set, tuple, int, float, bool, str, bytes, Counter, deque)


class Refused(ValueError):  # noqa: N818 - said of a request
    """A request has more in it than data."""


def _decimal(text: str) -> Decimal:
    if abs((value := Decimal(text)).adjusted()) > _MOST:
        raise Refused(f"found the decimal {text:.40}")
    return value


def _moment(of: Any, text: str, fold: int, zone: Any) -> Any:
    return of.fromisoformat(text).replace(fold=fold, tzinfo=zone)


def _row(
    of: type, arguments: Callable[[Any], Any], *kinds: type, make: Any = None
) -> tuple[type, Callable[[Any], Any], tuple[type, ...], Any]:
    return of, arguments, kinds, make or of


_PATHS: Final = (type(Path()), PurePosixPath, PureWindowsPath)
_HOSTS: Final = (IPv4Address, IPv6Address, IPv4Network, IPv6Network)
_VALUES: Final = (
    # A type, its arguments, of which types they are. The places of rows are stored: add at the end.
    *(_row(each, lambda it: [[*it]], list) for each in (tuple, set, frozenset)),
    *(_row(each, lambda it: [dict(it)], dict) for each in (OrderedDict, Counter)),
    *(_row(each, lambda it: [str(it)], str) for each in (*_PATHS, *_HOSTS)),
    *(_row(each, lambda it: it.__reduce__()[1], int) for each in (range, timedelta)),
    _row(Fraction, Fraction.as_integer_ratio, int),
    _row(int, lambda it: [f"{it:x}", 16], str, int),
    _row(complex, lambda it: [it.real, it.imag], float),
    _row(Decimal, lambda it: [str(it)], str, make=_decimal),
    _row(UUID, lambda it: [it.hex], str),
    _row(date, lambda it: it.timetuple()[:3], int),
    *(
        _row(
            each,
            lambda it: [it.replace(tzinfo=None).isoformat(), it.fold, it.tzinfo],
            *(str, int, NoneType, timezone, ZoneInfo),
            make=partial(_moment, each),
        )
        for each in (datetime, time)
    ),
    _row(timezone, lambda it: it.__reduce__()[1], timedelta, str),
    _row(ZoneInfo, lambda it: [it.key], str),
    _row(deque, lambda it: [[*it], it.maxlen], list, int, NoneType),
    _row(
        defaultdict,
        lambda it: [_FACTORIES.index(it.default_factory), dict(it)],
        *(int, dict),
        make=lambda at, values: defaultdict(_FACTORIES[at], values),
    ),
)
_MARK: Final = b"\xc7"  # begins each extension type that is written
_CLASS, _OBJECT = ExtType(0, b""), ExtType(1, b"")
_KEYS: Final = {row[0]: (ExtType(at, b""), row[1]) for at, row in enumerate(_VALUES, 2)}


def _call(called: Callable[..., Any], *arguments: Any) -> Any:
    return called(*arguments)


def _member(of: type[Enum], value: Any) -> Enum:
    return of(value) if issubclass(of, Flag) else of.__members__[value]


_new: Any = copyreg.__newobj__  # type: ignore[attr-defined]
_new_ex: Any = copyreg.__newobj_ex__  # type: ignore[attr-defined]
_MAKERS: Final = (_new, _new_ex, _call, _member)
"""What makes objects, of a class and arguments. Their places are stored."""


class _Reduced:
    """An object as pickle takes it apart: a copy of this is the object."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __reduce_ex__(self, _: object) -> Any:
        return self._parts


class Packing:
    """How requests are written, and read again.

    :param listed: import paths of classes that requests may name as well; they are imported.
    :raises SettingError: if one cannot be imported.
    """

    def __init__(self, listed: tuple[str, ...] = ()) -> None:
        self._listed = dict(map(_import, listed))
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
        fields = read(body, self._named)
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
        if not self._is_plain:
            self.fields(body)
        return body

    def _write(self, value: Any) -> Any:
        """Return what stands for a value that MessagePack has no type for."""
        of = type(value)
        if of.__module__ == "lxml.etree" and isinstance(value, str):
            return str(value)  # the text of a link, which a CrawlSpider's rules note
        self._is_plain &= of is tuple  # all others may be refused when they are read
        if of in _KEYS:
            key, take_apart = _KEYS[of]
            return {key: [*take_apart(value)]}
        if isinstance(value, type):
            return {_CLASS: _path(value)}
        if isinstance(value, Enum):
            by = value.value if isinstance(value, Flag) else value.name
            return {_OBJECT: [_MAKERS.index(_member), [of, by]]}
        maker, arguments, *rest = value.__reduce_ex__(4)
        if maker not in _MAKERS:
            maker, arguments = _call, (maker, *arguments)
        while rest and rest[-1] is None:
            rest.pop()
        filled = [list(each or ()) for each in rest[1:]]
        return {_OBJECT: [_MAKERS.index(maker), [*arguments], *rest[:1], *filled]}

    def _named(self, kind: ExtType, parts: Any) -> Any:
        """Return a class that may be named, or an object of one."""
        if kind == _OBJECT:
            return self._object(*parts)
        if parts in self._listed:
            return self._listed[parts]
        if _is_data(found := _look_up(parts), parts):
            return found
        raise _refusal(parts)

    def _object(self, at: int, arguments: Any, *rest: Any) -> Any:
        """Make an object. `rest`: its state, what it is filled with as a list, and as a dict."""
        if {*map(type, (arguments, *rest[1:]))} != {list} or not isinstance(arguments[0], type):
            raise Refused("found something else than an object")
        of, maker = arguments[0], _MAKERS[at]
        is_listed, is_enum = of in self._listed.values(), issubclass(of, Enum)
        is_as_usual = maker is (_member if is_enum else _new) and not rest[not is_enum :]
        if not (is_as_usual or is_listed):
            raise _refusal(_path(of))
        made = copy(_Reduced(maker, (*arguments,), *rest))
        own = {} if is_listed or is_enum else getattr(made, "__dict__", {})
        if any(map(callable, own.values())):  # it would be called instead of a method
            raise _refusal(_path(of))
        return made


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
        of, _, kinds, make = _VALUES[kind.code - 2]
        if type(arguments) is not list or not {*map(type, arguments)} <= {*kinds}:
            raise Refused(f"found something else than a {of.__name__}")
        if any(type(each) is str and len(each) > _MOST for each in arguments):
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


def _import(path: str) -> tuple[str, Any]:
    """Return what requests call a class that is listed, and the class."""
    try:
        found = load_object(path)
        if not isinstance(found, type):
            raise TypeError("not a class")
    except Exception as error:
        raise SettingError(
            f"{REDIS_CLASSES.setting} has {path!r}: must be the import path of a class, such as"
            f" 'project.items.Book' ({error!r})."
        ) from error
    return _path(found), found


def _refusal(path: Any) -> Refused:
    name = shown(str(path).replace(":", "."))
    return Refused(f"it names {name}: list that in {REDIS_CLASSES.setting} if requests may do so")
