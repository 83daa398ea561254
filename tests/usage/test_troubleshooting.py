"""Every warning and error that a crawl can log, as the source of the package has it, is explained.

What a command prints, and what refuses a value of a setting, says by itself what must be.
"""

import ast
import re
from pathlib import Path

import scrapy_bloom
from scrapy_bloom import errors

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
TERMS = re.findall(r"^`(.+)`\n: ", PAGE.read_text(), re.MULTILINE)
ENTRIES = [entry for term in TERMS for entry in term.split("` · `")]
SAYING = {
    **{name: 0 for name, kind in vars(errors).items() if isinstance(kind, type)},
    **dict.fromkeys(("warning", "error", "exception", "critical", "warn", "NotConfigured"), 0),
    **dict.fromkeys(("log", "once"), 1),
}
"""What writes a message, and which of its arguments that is."""

SPEAKERS = {"difference", "error", "warnings"}
"""Functions that return or yield messages, or put them into `text`."""

HOLE = "…"
_FORMAT = re.compile(r"%(\(\w+\))?\d*(\.\d+)?[a-z]|%%")


def test_troubleshooting_has_every_warning_and_error_of_a_crawl_and_no_other():
    used = set()
    for text, place in messages().items():
        entry = max(filter(text.startswith, ENTRIES), key=len, default=None)
        assert entry, f"docs/troubleshooting.md lacks {place}: {text}"
        used.add(entry)
    assert sorted(used) == sorted(ENTRIES)


def messages():
    """Return each message, with … for what it fills in, and where it stands."""
    root = Path(scrapy_bloom.__file__).parent
    found = {}
    for path in sorted({*root.rglob("*.py")} - {*root.glob("commands/*.py")}):
        module = ast.parse(path.read_text(encoding="utf-8"))
        nodes = [*ast.walk(module)]
        raised = [node.exc.args[0] for node in nodes if _is_not_configured(node)]
        for written in (one for node in nodes for one in _said(node)):
            for text in _texts(written):
                if ": must be " not in text and len(re.findall(r"\w{2,}", text)) > 1:
                    by = "Disabled scrapy_bloom.Addon: " if written in raised else ""
                    where = f"{path.relative_to(root).as_posix()}:{written.lineno}"
                    found.setdefault(by + text, where)
    return found


def _is_not_configured(node):
    """Return whether Scrapy logs the message, behind the name of the add-on."""
    raised = getattr(node, "exc", None) if isinstance(node, ast.Raise) else None
    return isinstance(raised, ast.Call) and ast.unparse(raised.func) == "NotConfigured"


def _said(node):
    """Yield what a call writes, or a function returns, if that is a message."""
    if isinstance(node, ast.FunctionDef) and node.name in SPEAKERS:
        for part in ast.walk(node):
            built = isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "text"
            if (isinstance(part, ast.Return | ast.Yield) or built) and part.value:
                yield part.value
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
        if re.search(r"%\(\w+\)s", str(node.value.value)):  # a template that is chosen elsewhere
            yield node.value
    elif isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        place = SAYING.get(name, len(node.args))
        quiet = place == 1 and ast.unparse(node.args[0]) in {"logging.INFO", "logging.DEBUG"}
        if len(node.args) > place and not quiet:
            yield node.args[place]


def _texts(written):
    if isinstance(written, ast.Constant) and isinstance(written.value, str):
        yield _FORMAT.sub(HOLE, written.value)
    elif isinstance(written, ast.JoinedStr):
        parts = written.values
        yield "".join(one.value if isinstance(one, ast.Constant) else HOLE for one in parts)
    elif isinstance(written, ast.IfExp):
        yield from _texts(written.body)
        yield from _texts(written.orelse)
    elif isinstance(written, ast.BinOp) and isinstance(written.op, ast.Add):
        yield from (text + HOLE for text in _texts(written.left))
