"""Reads requests that a stranger may have written: what they say is data, not code.

A pickle may import anything and call it. Most requests name nothing to import: C's unpickler reads
those, and is told to refuse any name. All others are read here, opcode by opcode:

- A name stands for a value class of the standard library, a class of data (an item class, an enum,
  a named tuple) in a module that is imported already, or what ``BLOOM_REDIS_CLASSES`` lists.
- Only value classes, enums and listed names are called. Of other classes instances are made without
  their constructor. They get their state once, and no attribute of theirs can be called: else
  one named ``append`` or ``__setstate__`` would be.
- Only lists, deques, dicts and sets are filled.
"""

from __future__ import annotations

import pickle
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from copyreg import _extension_registry as extensions  # type: ignore[attr-defined]
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from io import BytesIO
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from pickle import _Unpickler
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from itemadapter import ItemAdapter
from scrapy import Request
from scrapy.utils.misc import load_object
from scrapy.utils.request import request_from_dict

from scrapy_bloom.errors import SettingError, shown
from scrapy_bloom.settings import REDIS_CLASSES

if TYPE_CHECKING:
    from scrapy import Spider

_PROTO: Final = pickle.PROTO[0]  # begins every pickle of protocol 2 or later

_PATHS: Final = (Path, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath)
_CALLED: Final = frozenset({
    *(datetime, date, time, timedelta, timezone, Decimal, Fraction, complex, range, bytearray),
    *(IPv4Address, IPv4Network, IPv6Address, IPv6Network),
    *(OrderedDict, defaultdict, Counter, deque, *_PATHS),
})  # fmt: skip
_FACTORIES: Final = frozenset({list, dict, set, frozenset, tuple, int, float, bool, str, bytes})
"""What makes the values of a ``defaultdict``: named, and never called."""

_KNOWN: Final = {
    (module, each.__name__): each
    for each in (*_CALLED, *_FACTORIES, UUID, ZoneInfo)
    # Versions of Python differ in where they say that a path is.
    for module in (("pathlib", "pathlib._local") if each in _PATHS else (each.__module__,))
}

_Base: Any = _Unpickler  # in Python: C's has no opcodes to choose from

_PLAIN: Final = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK),
    *(pickle.MEMOIZE, pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2),
    *(pickle.LONG1, pickle.LONG4, pickle.BINFLOAT),
    *(pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.BINUNICODE8),
    *(pickle.SHORT_BINBYTES, pickle.BINBYTES, pickle.BINBYTES8, pickle.BYTEARRAY8),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.TUPLE),
    *(pickle.EMPTY_LIST, pickle.EMPTY_DICT, pickle.EMPTY_SET, pickle.FROZENSET),
)
"""Opcodes that import, call and change nothing."""


class Refused(pickle.UnpicklingError):
    """A request has more in it than data."""


class Reading:
    """How requests are read that a stranger may have written, and written so that they can be read.

    :param listed: import paths of what requests may name as well; they are imported.
    :raises SettingError: if one cannot be imported.
    """

    def __init__(self, listed: tuple[str, ...] = ()) -> None:
        self._listed = dict(map(_import, listed))

    def request(self, body: bytes, spider: Spider) -> Request:
        """Read a request.

        :raises Refused: if it has more in it than data.
        :raises Exception: whatever else its contents raise.
        """
        return request_from_dict(self.fields(body), spider=spider)

    def fields(self, body: bytes) -> dict[str, Any]:
        """Return a request as a dict. Raises what :meth:`request` raises."""
        if body[0] != _PROTO:
            raise Refused("found something else than a pickle")
        try:
            if extensions:  # C's unpickler calls some that it has met, and asks nobody
                raise _NamedError
            fields = _Nameless(BytesIO(body)).load()
        except _NamedError:
            fields = _Strict(body, self._listed).load()
        if type(fields) is not dict:
            raise Refused("found something else than a request")
        if "_class" in fields:
            self._check_class(fields["_class"])
        return fields

    def write(self, fields: dict[str, Any]) -> bytes:
        """Serialize a request.

        :raises Refused: if it could not be read again.
        :raises Exception: if it cannot be serialized, or whatever else reading it raises.
        """
        body = pickle.dumps(fields, protocol=4)
        # This byte comes with each name, and in some texts.
        if pickle.STACK_GLOBAL in body:
            # The text of a link, which a CrawlSpider's rules note, is a class of lxml's.
            plain = {name: _plain(value) for name, value in fields["meta"].items()}
            body = pickle.dumps({**fields, "meta": plain}, protocol=4)
        if pickle.STACK_GLOBAL in body or "_class" in fields or extensions:
            self.fields(body)
        return body

    def _check_class(self, path: Any) -> None:
        """Check the class of a request: Scrapy would import any, and call it."""
        module, _, name = path.rpartition(".") if isinstance(path, str) else ("", "", "")
        found = _look_up(module, name)
        if not (isinstance(found, type) and issubclass(found, Request)):
            raise _refusal(str(path))


def _plain(value: Any) -> Any:
    """Return a text of lxml's as Python's own."""
    is_text = isinstance(value, str) and type(value).__module__ == "lxml.etree"
    return str(value) if is_text else value


class _NamedError(pickle.UnpicklingError):
    """A request names something."""


class _Nameless(pickle.Unpickler):
    """Reads what names nothing."""

    __slots__ = ()

    def find_class(self, module: str, name: str) -> Any:
        raise _NamedError(module, name)


class _Strict(_Base):  # type: ignore[misc] # it is Any
    """Reads what names classes.

    :param listed: what may be named as well.
    """

    def __init__(self, body: bytes, listed: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(BytesIO(body))
        self._listed = listed
        self._made: dict[int, Any] = {}  # without a constructor, by id
        self._stateless: set[int] = set()  # those of them that have no state yet

    def load(self) -> Any:
        value = super().load()
        for each in self._made.values():
            parts = getattr(each, "__dict__", {}).values()
            if any(map(callable, parts)) and not self._is_listed(type(each)):
                raise _refusal(type(each), ", and has something to be called in it")
        return value

    def find_class(self, module: str, name: str) -> Any:
        at = module, name
        if at == ("builtins", "getattr"):
            return _attribute
        for known in (self._listed, _KNOWN):
            if at in known:
                return known[at]
        found = _look_up(module, name)
        if _is_data(found) and (found.__module__, found.__qualname__) == at:
            return found
        raise _refusal(f"{module}.{name}")

    # What calls, or makes an instance

    def load_reduce(self) -> None:
        called, args = self.stack[-2:]
        if type(args) is not tuple or not (self._is_listed(called) or self._may_call(called, args)):
            raise _refusal(called, ", and calls it like this")
        super().load_reduce()
        if self._is_listed(called):
            self._note_made(called)

    def load_newobj(self) -> None:
        made_of, args = self.stack[-2:]
        is_enum = isinstance(made_of, type) and issubclass(made_of, Enum)  # it has its members
        is_made_so = made_of is UUID or (_is_data(made_of) and not is_enum)
        if type(args) is not tuple or not (self._is_listed(made_of) or is_made_so):
            raise _refusal(made_of, ", and makes one like this")
        super().load_newobj()
        self._note_made(made_of)

    def load_newobj_ex(self) -> None:
        made_of = self.stack[-3]
        if not self._is_listed(made_of):
            raise _refusal(made_of, ", and makes one like this")
        super().load_newobj_ex()
        self._note_made(made_of)

    def _may_call(self, called: Any, args: tuple[Any, ...]) -> bool:
        if called is _attribute:
            return True
        if isinstance(called, type) and issubclass(called, Enum):
            return len(args) == 1  # with more it makes a class
        if called is bytearray and [*map(type, args)] not in ([], [bytes]):
            return False  # it would be a size
        is_value = called is _zone or (isinstance(called, type) and called in _CALLED)
        return is_value and not any(self._is_active(arg, called) for arg in args)

    def _is_active(self, arg: Any, called: Any) -> bool:
        """Return whether to call something with this might call or make much more."""
        if id(arg) in self._made or isinstance(arg, range):
            return True
        return callable(arg) and not (called is defaultdict and arg in _FACTORIES | _CALLED)

    def _note_made(self, made_of: Any) -> None:
        made = self.stack[-1]
        if type(made) is made_of and id(made) not in self._made:
            self._made[id(made)] = made
            self._stateless.add(id(made))

    def _is_listed(self, named: Any) -> bool:
        return any(named is each for each in self._listed.values())

    # What changes an instance

    def load_build(self) -> None:
        made = self.stack[-2]
        if id(made) not in self._stateless:
            raise _refusal(type(made), ", and gives it such a state")
        self._stateless.discard(id(made))
        super().load_build()

    def load_append(self) -> None:
        self._check_filled(self.stack[-2], list, deque)
        super().load_append()

    def load_appends(self) -> None:
        self._check_filled(self.metastack[-1][-1], list, deque)
        super().load_appends()

    def load_setitem(self) -> None:
        self._check_filled(self.stack[-3], dict, OrderedDict, defaultdict)
        super().load_setitem()

    def load_setitems(self) -> None:
        self._check_filled(self.metastack[-1][-1], dict, OrderedDict, defaultdict)
        super().load_setitems()

    def load_additems(self) -> None:
        self._check_filled(self.metastack[-1][-1], set)
        super().load_additems()

    def _check_filled(self, filled: Any, *kinds: type) -> None:
        if type(filled) not in kinds and not self._is_listed(type(filled)):
            raise _refusal(type(filled), ", and fills one like this")

    def _refuse(self) -> None:
        raise Refused("found what pickle does not write for a request")

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        **dict.fromkeys(range(256), _refuse),
        **{code[0]: _Base.dispatch[code[0]] for code in _PLAIN},
        pickle.STACK_GLOBAL[0]: _Base.load_stack_global,
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_newobj,
        pickle.NEWOBJ_EX[0]: load_newobj_ex,
        pickle.BUILD[0]: load_build,
        pickle.APPEND[0]: load_append,
        pickle.APPENDS[0]: load_appends,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.ADDITEMS[0]: load_additems,
    }


def _attribute(of: Any, name: Any) -> Any:
    """Stand in for `getattr`, by which zones and some versions' enums are pickled."""
    if of is ZoneInfo and name == "_unpickle":
        return _zone
    if isinstance(of, type) and issubclass(of, Enum) and type(name) is str:
        return of.__members__[name]
    raise _refusal(getattr)


def _zone(key: Any, from_cache: Any) -> ZoneInfo:
    return ZoneInfo(key) if from_cache else ZoneInfo.no_cache(key)


def _is_data(found: Any) -> bool:
    """Return whether this is a class of data: an item class, an enum or a named tuple."""
    if not isinstance(found, type) or issubclass(found, dict):
        return False
    is_named_tuple = issubclass(found, tuple) and hasattr(found, "_fields")
    return is_named_tuple or issubclass(found, Enum) or ItemAdapter.is_item_class(found)


def _look_up(module: str, name: str) -> Any:
    """Return what a module has under a name; None if it is not imported, or has nothing there.

    Neither runs any code: some modules import others when they are asked for an attribute.
    """
    found: Any = sys.modules.get(module)
    if not isinstance(found, ModuleType):
        return None
    names = ModuleType.__getattribute__(found, "__dict__")
    for part in name.split("."):
        found = names.get(part)
        if not isinstance(found, type):
            return None
        names = found.__dict__
    return found


def _import(path: str) -> tuple[tuple[str, str], Any]:
    """Return what pickle calls something, and what it is."""
    try:
        found = load_object(path)
        name = found.__module__, found.__qualname__
    except Exception as error:
        raise SettingError(
            f"{REDIS_CLASSES.setting} has {path!r}: must be the import path of a class, such as"
            f" 'project.items.Book' ({error!r})."
        ) from error
    return name, found


def _refusal(named: object, more: str = "") -> Refused:
    """Return the error for a name, or for what it stands for."""
    name = getattr(named, "__qualname__", None)
    text = named if isinstance(named, str) else f"{getattr(named, '__module__', '?')}.{name}"
    return Refused(
        f"it names {shown(text)}{more}: list that in {REDIS_CLASSES.setting} if requests may do so"
    )
