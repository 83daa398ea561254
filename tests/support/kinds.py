"""Kinds of values that requests carry, and traps: what notes in `RAN` that its code was run."""

import subprocess
from collections import namedtuple
from dataclasses import dataclass
from enum import Enum, Flag, IntFlag
from subprocess import Popen  # a project may have it in reach
from typing import Any, NamedTuple

import attrs
import scrapy

RAN = []


def run(*arguments, **_):
    RAN.append(arguments)
    return RAN


def __getattr__(name):  # as a module that imports others when it is asked
    if name == "Lazy":
        RAN.append(name)
        return Page
    raise AttributeError(name)


class Book(scrapy.Item):
    title = scrapy.Field()


@dataclass
class Page:
    number: Any = 1


Alias = Page


@dataclass(slots=True, frozen=True)
class Point:
    x: Any = 1


@attrs.define
class Author:
    name: Any = "?"


@attrs.define(slots=False)
class Shop:
    name: Any = "?"


Color = Enum("Color", "RED")
Language = Enum("Language", {"ENGLISH": "en"}, type=str)
Flags = IntFlag("Flags", "A B")
Rights = Flag("Rights", "READ WRITE")
Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - as projects do


class Single(NamedTuple):
    a: Any


class Outer:
    class Inner(Enum):
        X = "x"

    @dataclass
    class Part:
        a: Any = 1


class Form(scrapy.Request):
    pass


class Plain:
    """No class of data."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is type(self) and self.value == other.value

    __hash__ = None


@dataclass
class Called:
    """It asks to be made by its constructor."""

    value: Any = None

    def __reduce__(self):
        return Called, (self.value,)


@dataclass
class Many(list):
    """It is more than its fields."""

    value: Any = None


# Traps


@dataclass
class Noting:
    """Its constructor runs, say, a command."""

    value: Any = None

    def __post_init__(self):
        RAN.append(self.value)


class Fresh:
    def __new__(cls, *arguments, **_):
        RAN.append(arguments)
        return super().__new__(cls)


@dataclass
class Filling:
    def __setitem__(self, key, value):
        RAN.append(value)


_ = subprocess, Popen
