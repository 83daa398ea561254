"""From what people write to the place that they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.options import REDIS_KEY, REDIS_URL, Option
from scrapy_bloom.storage.marker import SNAPSHOT
from scrapy_bloom.tools.local_target import FileTarget, JobTarget
from scrapy_bloom.tools.project import Project
from scrapy_bloom.tools.target import Target

SCHEMES: Final = ("redis://", "rediss://", "unix://")

Where = str | Path | Target
"""A target, or how people write one."""


def target_of(where: Where | None, *, key: str = "", project: Project | None = None) -> Target:
    """Return the target that is meant.

    :param where: a job directory; ``requests.bloom`` in one; a file with a filter; the URL of a
        Redis server, as for :meth:`RedisFilter.from_url`, with ``#`` and the key of the filter
        behind it perhaps; or None for that of the project. What is not there is a file if its name
        has a suffix, such as ``.bloom``, else a job directory.
    :param key: the key of the filter, for a Redis server whose URL does not have it.
    :param project: whose settings to use if `where` is None; by default the project around the
        working directory. Its ``BLOOM_REDIS_TIMEOUT`` holds for the URL of a server, too.
    :raises SettingError: if no target is meant, or a key is missing.
    """
    if isinstance(where, Target):
        return where
    if where is None or where == "":
        return (project or Project()).target()
    text = str(where)
    if text.startswith(SCHEMES):
        url, _, own = text.partition("#")
        return _in_redis(url, own or key, project)
    if "://" in text:
        raise SettingError(f"{text} is no target: of URLs only those of Redis servers are")
    if key:
        raise SettingError(f"--key is for the URL of a Redis server, not for {text}")
    path = Path(text)
    try:
        if path.is_dir():
            return JobTarget(path)
        if path.name == SNAPSHOT:
            return JobTarget(path.parent)
        return FileTarget(path) if path.exists() or path.suffix else JobTarget(path)
    except OSError as error:  # the folder around it cannot be searched
        raise StateError(
            f"{path}: {error.strerror}. Give this user the right to read it."
        ) from error


def _in_redis(url: str, key: str, project: Project | None) -> Target:
    if not key:
        raise SettingError(
            "a filter in Redis has a key: give it with --key, as in --key books:bloom"
        )
    try:
        # Imported only here: redis is an extra.
        from scrapy_bloom.redis.connection import Target as Server  # noqa: PLC0415
        from scrapy_bloom.tools.redis_target import TIMEOUT, RedisTarget  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise SettingError(
            f"a filter in Redis needs the package {error.name}: pip install 'scrapy-bloom[redis]'"
        ) from error
    if project is None:
        return RedisTarget(Server(url), key)
    server = Server(url, words=_in_commands)
    return RedisTarget(server, key, timeout=max(project.timeout, TIMEOUT), words=_in_commands)


def _in_commands(option: Option[Any]) -> str:
    """Name an option as those know it who give a command the URL of a server."""
    given = {REDIS_URL.setting: "the URL", REDIS_KEY.setting: "--key"}
    return given.get(option.setting, option.setting)
