"""Where a shard is, and how messages name that place."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from redis.crc import key_slot

from scrapy_bloom.options import REDIS_KEY, Words, refusal
from scrapy_bloom.redis.connection import FAULTS, Client, explain, explained


@dataclass(frozen=True)
class Place:
    """Where a shard is, and how messages name that place.

    Attributes:
        client: of the server or cluster.
        server: its name for the user.
        key: key of the shard's header.
        timeout: most seconds that one call may take.
        words: names an option in messages.
        commands: those that the filter's layout needs beside what all filters need.
        reading: whether a filter is looked for that is there already.
    """

    client: Client
    server: str
    key: str
    timeout: float
    words: Words
    commands: tuple[str, ...] = ()
    reading: bool = False

    @property
    def name(self) -> str:
        """Server and key, for messages."""
        return f"Redis at {self.server}, key {self.key}"

    @property
    def other_key(self) -> str:
        """What to do if something else is under the key, as a sentence."""
        return f"G{self.or_other_key[1:]}"

    @property
    def or_other_key(self) -> str:
        """The same as the end of a sentence."""
        if self.reading:
            return f"give the {self.words(REDIS_KEY)} of a filter."
        return f"give this filter another {self.words(REDIS_KEY)}. Nothing was changed."

    @property
    def node(self) -> str:
        """The node of a cluster that has the key now; empty without a cluster, or if unknown."""
        find = getattr(self.client, "get_node_from_key", None)
        try:
            return str(find(self.key).name) if find else ""
        except (AttributeError, *FAULTS):
            return ""

    @property
    def beginning(self) -> str:
        """What the names of all other keys of the shard begin with. It keeps the header's slot."""
        return f"{self.key if _has_tag(self.key) else f'{self.key}:{{{self.key}}}'}:"

    def prefix(self, epoch: str) -> str:
        """Return the beginning of the names of a filter's segments.

        Epochs keep the bits of a lost filter apart from those of its successor.
        """
        return f"{self.beginning}{epoch}:"

    def check_slot(self) -> None:
        """Refuse a key by which a cluster would not hold header and segments on one node.

        :raises SettingError: naming the key.
        """
        if key_slot(self.key.encode()) != key_slot(self.prefix("").encode()):
            raise refusal(
                self.words(REDIS_KEY),
                self.key,
                "in a Redis Cluster give a key without braces, or with text in its first pair of"
                " braces.",
            )

    def explain(self, error: Exception) -> str:
        """Say what an error of the client means and what to do, to follow the server's name."""
        return explain(error, self.words, self.commands)

    def explained(self) -> AbstractContextManager[None]:
        """Turn errors of the client into a :class:`BackendError` that says what they mean."""
        return explained(self.server, self.words, self.commands)


def _has_tag(key: str) -> bool:
    """Return whether Redis Cluster takes a part of the key, in braces, for its slot."""
    return bool(key.partition("{")[2].partition("}")[0]) and "}" in key.partition("{")[2]
