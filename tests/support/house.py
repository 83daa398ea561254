"""The house: which module of the package may import which, read from the sources.

Every import counts, wherever it stands: at the top of a file, in a function, or for type checkers
only. So does the name of a module in a string, except where :data:`BY_NAME` says so.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

PACKAGE = "scrapy_bloom"

# From top to bottom. A room may import from itself and from what stands below it.
ROOMS = [
    # Doors: what Scrapy and people call. The package itself names what is public.
    {
        "",
        "addon",
        "commands",
        "dupefilter",
        "fingerprinter",
        "forgetting",
        "scheduler",
        "scrapy_redis",
    },
    {"local", "redis"},
    {"crawl"},
    {"canonical", "filter"},
    {"_version", "errors", "options", "settings", "signals", "stats"},
]
STRANGERS = [{"local", "redis"}, {"canonical", "filter"}]  # stand side by side, and never meet
BY_NAME = {"", "options"}  # import by a name in a string: what is public, and who reads an option

IO = {
    "asyncio", "fcntl", "filelock", "http", "io", "mmap", "os", "pathlib", "redis", "select",
    "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile",
    "twisted", "urllib.request",
}  # fmt: skip
# What a room may not import although it stands below, or outside of the package.
FORBIDDEN = {
    "canonical": {f"{PACKAGE}.settings", "scrapy.crawler", "scrapy.settings"} | IO,
    "filter": {f"{PACKAGE}.settings", "scrapy", "twisted", "redis"},
}
# The two of `socket` are arithmetic on addresses.
ALLOWED = {"__future__", "typing", "socket.inet_aton", "socket.inet_ntoa"}
WITHOUT_CALLS = {"canonical"}
CALLS = {"input", "open", "print"}


@dataclass(frozen=True)
class Import:
    """One import: `line` of `source` brings in the module or name `target`."""

    source: str
    line: int
    target: str

    @property
    def where(self):
        return f"{self.source}, line {self.line}: imports {self.target}"


def sources(folder):
    """Return the text of every module below a package's folder, by its full name."""
    folder = Path(folder)
    return {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__"): (
            path.read_text(encoding="utf-8"),
            path.name == "__init__.py",
        )
        for path in folder.rglob("*.py")
    }


def room(module):
    """Return the room of a module of the package: a folder's name, or a file's at the top."""
    return module.partition(".")[2].partition(".")[0]


def level(name):
    return next((number for number, rooms in enumerate(ROOMS) if name in rooms), None)


@cache
def _nodes(text):
    """Return all of a source that imports, may name a module, or calls."""
    kinds = ast.Import, ast.ImportFrom, ast.Constant, ast.Call
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]


def imports(modules):
    """List every import of every module; for a name out of one of ours, its module."""
    found = []
    for source, (text, is_folder) in modules.items():
        for node in _nodes(text):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                parts = source.split(".")
                start = parts[: len(parts) - node.level + is_folder] if node.level else []
                origin = ".".join([*start, *([node.module] if node.module else [])])
                targets = [f"{origin}.{alias.name}" for alias in node.names]
                if origin in modules:
                    targets = [each if each in modules else origin for each in targets]
            elif isinstance(node, ast.Constant) and room(source) not in BY_NAME:
                targets = [str(node.value).partition(":")[0]]
                if targets[0] not in modules or targets[0] == PACKAGE:
                    continue
            else:
                continue
            found += [Import(source, node.lineno, target) for target in dict.fromkeys(targets)]
    return found


def is_under(name, parents):
    return any(not parent or name == parent or name.startswith(f"{parent}.") for parent in parents)


def homeless(modules):
    """Say which modules stand in no room."""
    return [
        f"{module} stands in no room: give {room(module)!r} a place in ROOMS"
        for module in modules
        if level(room(module)) is None
    ]


def arrows_up(modules):
    """Say which imports go up the house, or between rooms that do not know each other."""
    problems = []
    for each in imports(modules):
        if each.target not in modules:
            continue
        here, there = room(each.source), room(each.target)
        if level(here) is None or level(there) is None or here == there:
            continue
        if level(there) < level(here):
            problems.append(f"{each.where}; {there or PACKAGE!r} stands above {here!r}")
        if {here, there} in STRANGERS:
            problems.append(f"{each.where}; {here!r} and {there!r} do not import each other")
    return problems


def forbidden(modules):
    """Say where a room imports settings, Scrapy's crawler or I/O, or calls it, and must not."""
    problems = [
        f"{each.where}; {room(each.source)!r} must not"
        for each in imports(modules)
        if is_under(each.target, FORBIDDEN.get(room(each.source), ()))
        and not is_under(each.target, ALLOWED)
    ]
    for module, (text, _) in modules.items():
        if room(module) in WITHOUT_CALLS:
            problems += [
                f"{module}, line {node.lineno}: calls {node.func.id}(); {room(module)!r} must not"
                for node in _nodes(text)
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in CALLS
            ]
    return problems


def circles(modules):
    """Say which files, and which rooms, import each other in a circle: one of each at most."""
    inside = [each for each in imports(modules) if each.target in modules]
    problems = []
    for kind, name in (("files", lambda module: module), ("rooms", room)):
        lines, graph = {}, {}
        for each in inside:
            pair = (name(each.source), name(each.target))
            if pair[0] != pair[1]:
                graph.setdefault(pair[0], set()).add(pair[1])
                lines.setdefault(pair, each)
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            ring = list(reversed(error.args[1]))
            steps = [lines[pair].where for pair in pairwise(ring) if pair in lines]
            problems.append(f"a circle of {kind}:\n    " + "\n    ".join(steps))
    return problems
