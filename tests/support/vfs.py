"""A layer between SQLite and the file system, which tells what SQLite does to files, and when.

It is SQLite's own layer with some methods replaced, so it needs no compiler.
"""

import _sqlite3
import ctypes
import os
from ctypes import PYFUNCTYPE, c_char_p, c_int, c_int64, c_void_p
from pathlib import Path


def find():
    """Return SQLite's library, None if its functions cannot be called from here."""
    library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))  # or in the interpreter itself
    return library if hasattr(library, "sqlite3_vfs_find") else None


def tell(step, path, *_):
    """Is called when SQLite is about to do a step, or has "created" a file; a test replaces it.

    With "written" comes the offset, and what is written; with "truncated" the size.
    """
    if path.endswith("bloom.sqlite") and step in {"written", "synced"}:
        (page_written if step == "written" else file_synced)()


def page_written():
    """Is called when a checkpoint is about to write a page of a store's file."""


def file_synced():
    """Is called when a checkpoint is about to sync a store's file."""


_Methods = c_void_p * 19
"""SQLite's `sqlite3_io_methods`: after the version, pointers."""

_WRITE, _TRUNCATE, _SYNC = 3, 4, 5


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, c_int) for name in ("version", "file_size", "path_size")),
        *(("next", c_void_p), ("name", c_char_p), ("data", c_void_p)),
        *(("open", c_void_p), ("delete", c_void_p), ("others", c_void_p * 14)),
    ]


# They keep the GIL: what is told is in the order in which it is done.
_Open = PYFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_Delete = PYFUNCTYPE(c_int, c_void_p, c_void_p, c_int)
_Write = PYFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_Truncate = PYFUNCTYPE(c_int, c_void_p, c_int64)
_Sync = PYFUNCTYPE(c_int, c_void_p, c_int)

_kept = []  # what SQLite has pointers to


def install():
    """Have the connections that are opened from now on use the layer, if there can be one."""
    library = find()
    if _kept or library is None:
        return
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_Layer)
    original = library.sqlite3_vfs_find(None)
    layer = _Layer.from_buffer_copy(original.contents)
    paths, tables = {}, {}
    open_, delete = _Open(original.contents.open), _Delete(original.contents.delete)

    @_Open
    def opening(_, name, handle, flags, out):
        path = os.fsdecode(ctypes.string_at(name)) if name else ""
        is_new = bool(path) and not Path(path).exists()
        code = open_(ctypes.addressof(original.contents), name, handle, flags, out)
        methods = c_void_p.from_address(handle)  # the first field of each open file
        if code == 0 and methods.value:
            if methods.value not in tables:
                tables[methods.value] = _telling(methods.value, paths)
            paths[handle] = path
            methods.value = ctypes.addressof(tables[methods.value])
            if is_new:
                tell("created", path)
        return code

    @_Delete
    def deleting(_, name, sync):
        path = os.fsdecode(ctypes.string_at(name))
        if Path(path).exists():
            tell("deleted", path)
        return delete(ctypes.addressof(original.contents), name, sync)

    layer.name, layer.next = b"telling", None
    layer.open, layer.delete = (ctypes.cast(each, c_void_p) for each in (opening, deleting))
    _kept.extend([layer, paths, tables, opening, deleting])
    library.sqlite3_vfs_register(ctypes.byref(layer), 1)


def _telling(address, paths):
    """Return methods of a file that tell what they do."""
    methods = _Methods.from_buffer_copy(_Methods.from_address(address))
    write, truncate = _Write(methods[_WRITE]), _Truncate(methods[_TRUNCATE])
    sync = _Sync(methods[_SYNC])

    @_Write
    def writing(handle, data, size, offset):
        tell("written", paths[handle], offset, ctypes.string_at(data, size))
        return write(handle, data, size, offset)

    @_Truncate
    def truncating(handle, size):
        tell("truncated", paths[handle], size)
        return truncate(handle, size)

    @_Sync
    def syncing(handle, flags):
        tell("synced", paths[handle])
        return sync(handle, flags)

    for number, method in (_WRITE, writing), (_TRUNCATE, truncating), (_SYNC, syncing):
        methods[number] = ctypes.cast(method, c_void_p).value
        _kept.append(method)
    return methods
