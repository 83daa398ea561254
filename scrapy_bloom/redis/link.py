"""One round trip to one server: a script is run, and what fails is turned into an outage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from scrapy_bloom.errors import StateError
from scrapy_bloom.redis import scripts
from scrapy_bloom.redis.breaker import CircuitBreaker
from scrapy_bloom.redis.connection import BROKEN, FAULTS, hang_up
from scrapy_bloom.redis.deadline import Within
from scrapy_bloom.redis.place import Place
from scrapy_bloom.redis.scripts import Script


class ScriptRunner:
    """Runs scripts on the server of one shard.

    :param place: where the shard is.
    """

    __slots__ = ("place",)

    def __init__(self, place: Place) -> None:
        self.place = place

    def run(self, script: Script, prefix: str, signature: str, *arguments: object) -> Any:
        """Run a script; return its answer: bytes, or a list that begins with bytes.

        :param prefix: what the names of the filter's segments begin with.
        :param signature: of the filter that the script may touch.
        """
        execute = self.place.client.execute_command
        key = self.place.key
        try:
            with Within(self.place.timeout):
                try:
                    answer = execute("EVALSHA", script.sha, 2, key, prefix, signature, *arguments)
                except redis.exceptions.NoScriptError:  # the server was restarted, or is new
                    answer = execute("EVAL", script.source, 2, key, prefix, signature, *arguments)
        except FAULTS:
            raise
        except Exception as error:
            # The client has many classes for what it cannot read, ValueError among them.
            raise redis.InvalidResponse(f"{type(error).__name__}: {error}") from error
        if isinstance(answer, script.answers):
            word = answer[0] if isinstance(answer, list) and answer else answer
            if isinstance(word, bytes):
                return answer
        raise self.garbled(answer)

    def garbled(self, answer: object) -> redis.InvalidResponse:
        """Return the error for an answer that cannot be one to what was asked.

        Its connection is closed: the next answer on it may belong to another question as well.
        """
        hang_up(self.place.client)
        return redis.InvalidResponse(f"{answer!r:.80}")

    @contextmanager
    def reading(self, answer: object) -> Iterator[None]:
        """Refuse an answer that cannot be read in here."""
        try:
            yield
        except (IndexError, TypeError, ValueError):
            raise self.garbled(answer) from None

    def now(self) -> float:
        """Return the time of the server, in seconds since 1970."""
        answer = self.retry_once(scripts.NOW, self.place.beginning, "")
        with self.reading(answer):
            return float(answer[1])

    def retry_once(self, script: Script, prefix: str, signature: str, *arguments: object) -> Any:
        """Run a script that may run twice, and run it again if its answer got lost."""
        try:
            return self.run(script, prefix, signature, *arguments)
        except redis.BusyLoadingError:  # an answer, though the class is of those in BROKEN
            raise
        except BROKEN:
            return self.run(script, prefix, signature, *arguments)


class Link(ScriptRunner):
    """Runs scripts, and knows whether the server can be used.

    :param place: where the shard is.
    :param breaker: what to do while its server cannot be used.
    """

    __slots__ = ("breaker",)

    def __init__(self, place: Place, breaker: CircuitBreaker) -> None:
        super().__init__(place)
        self.breaker = breaker

    def probe(self) -> bytes:
        """Return ``b"ok"`` if the server answers, where there is no filter to ask about."""
        with Within(self.place.timeout):
            self.place.client.execute_command("EXISTS", self.place.key)
        return b"ok"

    @contextmanager
    def tripping(self) -> Iterator[None]:
        """Trip the breaker where the server, or what is in the filter's place, cannot be used.

        :raises BackendError: instead of what the client raised.
        """
        try:
            yield
        except FAULTS as error:
            self.breaker.trip(self.place.explain(error))
            raise self.breaker.error() from None
        except StateError as error:
            self.breaker.trip(f"no longer has the filter. {error}")
            raise self.breaker.error() from None
