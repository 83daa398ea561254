"""Every warning and error that a crawl can log, read out of the source of the package.

What a command prints, and what refuses a value of a setting, says by itself what must be.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import scrapy_bloom
from scrapy_bloom import errors

ERRORS = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
LOGS = {"warning", "error", "exception", "critical"}
SPEAKERS = {"difference", "error"}
"""Functions that return text for a message: what they return, or put into `text`, is one."""

HOLE = "…"
_FORMAT = re.compile(r"%(\(\w+\))?\d*(\.\d+)?[a-z]|%%")
_NAMED = re.compile(r"%\(\w+\)s")


def messages() -> dict[str, str]:
    """Return each message, with … for what it fills in, and where it stands."""
    root = Path(scrapy_bloom.__file__).parent
    found = {}
    for path in sorted({*root.rglob("*.py")} - {*root.glob("commands/*.py")}):
        for line, text in _of_module(ast.parse(path.read_text(encoding="utf-8"))):
            if ": must be " in text:  # refuses a value, as above
                continue
            if len(re.findall(r"\w{2,}", text)) > 1:  # less only passes on what others say
                found.setdefault(text, f"{path.relative_to(root).as_posix()}:{line}")
    return found


def _of_module(module: ast.Module) -> Iterator[tuple[int, str]]:
    constants = {
        target.id: node.value
        for node in module.body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in constants.values():  # templates that are chosen where they are used
        if isinstance(node, ast.Constant) and _NAMED.search(str(node.value)):
            yield node.lineno, _FORMAT.sub(HOLE, node.value)
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            for start, written in _said(node):
                for text in _texts(written, constants):
                    yield node.lineno, start + text
        elif isinstance(node, ast.FunctionDef) and node.name in SPEAKERS:
            for written in _spoken(node):
                for text in _texts(written, constants):
                    yield written.lineno, text


def _spoken(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """Yield what a function returns, or puts into `text` to return it."""
    for node in ast.walk(function):
        returned = isinstance(node, ast.Return)
        built = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "text"
        if (returned or built) and node.value:
            yield node.value


def _said(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Yield what a call writes, if it is one that does, and what comes before it."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    of = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    arguments = call.args
    if ((of.endswith("logger") and name in LOGS) or name == "warn") and arguments:
        yield "", arguments[0]
    elif name in {"log", "once"} and arguments:
        if ast.unparse(arguments[0]) in {"logging.WARNING", "logging.ERROR"}:
            yield "", arguments[1]
    elif name == "NotConfigured" and arguments:  # Scrapy writes it
        yield "Disabled scrapy_bloom.Addon: ", arguments[0]
    elif name in ERRORS and arguments:
        yield "", arguments[0]


def _texts(written: ast.expr, constants: dict[str, ast.expr]) -> Iterator[str]:
    if isinstance(written, ast.Constant) and isinstance(written.value, str):
        yield _FORMAT.sub(HOLE, written.value)
    elif isinstance(written, ast.JoinedStr):
        yield "".join(
            part.value if isinstance(part, ast.Constant) else HOLE for part in written.values
        )
    elif isinstance(written, ast.IfExp):
        yield from _texts(written.body, constants)
        yield from _texts(written.orelse, constants)
    elif isinstance(written, ast.BinOp) and isinstance(written.op, ast.Add):
        for text in _texts(written.left, constants):
            yield text + HOLE
    elif isinstance(written, ast.Name) and written.id in constants:
        yield from _texts(constants[written.id], constants)
