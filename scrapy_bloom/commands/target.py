"""Resolve a TARGET argument."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from scrapy_bloom.commands.local_target import LocalTarget
from scrapy_bloom.commands.project import Project
from scrapy_bloom.errors import SettingError
from scrapy_bloom.settings import REDIS_KEY, is_in_redis

if TYPE_CHECKING:
    from scrapy_bloom.commands.redis_target import RedisTarget

Target: TypeAlias = "LocalTarget | RedisTarget"

SCHEMES: Final = ("redis://", "rediss://", "unix://", "sentinel://")

_KINDS: Final = (
    "a job directory, a bloom.sqlite file, or the URL of a Redis server with #KEY at its end"
)


def add_target(parser: ArgumentParser) -> None:
    """Add the argument that names a filter."""
    parser.add_argument("target", metavar="TARGET", nargs="?", help=_KINDS)


def line_for(args: Namespace, verb: str, *options: str) -> str:
    """Return a command line for the same filter, to be pasted. Passwords are not in it."""
    where = args.target or ""
    named = ("--spider", args.spider) if args.spider else ()
    places = ("TARGET" if "@" in where else where,) if where else ()
    return shlex.join(("scrapy", "bloom", verb, *places, *named, *options))


def target_of(project: Project, where: str | None) -> Target:
    """Return the target that a user names; by default that of the spider's crawl.

    :raises SettingError: if no target is named.
    """
    if where and not where.startswith(SCHEMES):
        return LocalTarget(Path(where), project)
    url, _, key = (where or "").partition("#")
    settings = project.settings
    if where and not key:
        raise SettingError(
            "a filter in Redis has a key: append it to the URL, as in"
            " redis://localhost#books:books:bloom"
        )
    if not where:
        shared = "scrapy_redis" in str(project.scrapys.get("SCHEDULER"))
        if not is_in_redis(project.scrapys, shared_queue=shared):
            if folder := project.scrapys["JOBDIR"]:  # Scrapy's own function would create it
                return LocalTarget(Path(folder), project)
            hint = " If the spider's custom_settings have it, add --spider NAME."
            raise SettingError(
                f"expected a TARGET: {_KINDS}. The settings have neither a JOBDIR nor a"
                f" BLOOM_REDIS_URL.{'' if project.spider else hint}"
            )
        if not project.spider and "%(spider)s" in settings[REDIS_KEY]:
            raise SettingError("expected a TARGET, or the name of a spider with --spider")
    # Imported only here: redis is an extra.
    from scrapy_bloom.commands.redis_target import RedisTarget
    from scrapy_bloom.redis.client import Server
    from scrapy_bloom.redis.project import key_of, server_of

    if key:
        REDIS_KEY.read("the key", key)
    key = key or key_of(settings, spider=project.spider, project=project.name)
    return RedisTarget(Server(url) if url else server_of(settings), key, project)
