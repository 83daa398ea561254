"""Entries on their way to one shard, and what is known of each until its caller knows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scrapy_bloom.redis.queue import member
from scrapy_bloom.redis.queue.base import Entry, Ticket
from scrapy_bloom.redis.queue.calls import Offering, half_done


class Verdict(NamedTuple):
    """What became of one entry.

    Attributes:
        seen: whether its page was seen before.
        ticket: its ticket, if it is held now.
    """

    seen: bool
    ticket: Ticket | None = None


class LateVerdicts:
    """Verdicts whose caller was told of an error. They wait for the entries to be offered again."""

    def __init__(self) -> None:
        self._verdicts: dict[Entry, list[Verdict]] = {}

    def keep(self, entries: Sequence[Entry], verdicts: Sequence[Verdict | None]) -> None:
        """Add those verdicts that are there."""
        for entry, verdict in zip(entries, verdicts, strict=True):
            if verdict is not None:
                self._verdicts.setdefault(entry, []).append(verdict)

    def pop(self, entry: Entry) -> Verdict | None:
        """Return and forget the verdict of an entry; None if there is none."""
        if not self._verdicts or entry not in self._verdicts:
            return None
        verdicts = self._verdicts[entry]
        verdict = verdicts.pop(0)
        if not verdicts:
            del self._verdicts[entry]
        return verdict


class Batch:
    """Entries that are offered until each one has its verdict, however many calls that takes.

    :param entries: the entries.
    :param names: names for those that are held, by their index.

    Attributes:
        entries: the entries.
        names: as above.
        in_doubt: whether a call may have been carried out without an answer.
    """

    def __init__(self, entries: Sequence[Entry], names: dict[int, bytes]) -> None:
        self.entries = entries
        self.names = names
        self.in_doubt = False
        self._forced = False  # whether to queue them even if their pages are marked
        self._todo = [at for at, entry in enumerate(entries) if entry.fingerprint is not None]
        self._plain = [at for at, entry in enumerate(entries) if entry.fingerprint is None]
        self._seen = [False] * len(entries)

    @property
    def seen(self) -> list[bool]:
        """For each entry, in order, whether its page was seen before."""
        return self._seen

    @property
    def fingerprints(self) -> list[bytes]:
        """The fingerprints of the entries that have no verdict yet."""
        return [self.entries[at].fingerprint or b"" for at in self._todo]

    def offering(self, doubted: Iterable[bytes]) -> Offering:
        """Return the next call: all entries that were not answered.

        :param doubted: fingerprints that a call of ours may have marked without queueing anything.
        """
        doubtful = set(doubted)
        letters, parts = bytearray(), []
        for at in sorted([*self._todo, *self._plain]):
            entry = self.entries[at]
            name = self.names.get(at, b"")
            letter = "p" if entry.fingerprint is None else "h" if name else "f"
            if self._forced or entry.fingerprint in doubtful:
                letter = letter.replace("f", "F").replace("h", "H")
            letters += letter.encode()
            parts += [member.score(entry.priority), name + member.tail(entry)]
        ages = {
            item: age
            for item, at in enumerate(self._todo, 1)
            if (age := self.entries[at].max_age) is not None
        }
        return Offering(self.fingerprints, bytes(letters), parts, ages=ages)

    def answered(self, verdicts: Sequence[bool]) -> None:
        """Note the verdicts of the first entries of the call; the others get theirs by the next."""
        self.in_doubt = False
        self._plain = []
        for at, seen in zip(self._todo, verdicts, strict=False):
            self._seen[at] = seen
        del self._todo[: len(verdicts)]

    def refused(self, word: bytes) -> None:
        """Note that the server does not know the worker any more, by the word that it said.

        A call of ours that came to no answer was carried out before, unless the word tells. Then
        its marks are there, and maybe its requests are not.
        """
        if self.in_doubt and word != b"buried":
            self.force()
        self.in_doubt = False

    def note(self, faults: Sequence[Exception]) -> None:
        """Note the errors that a call has met."""
        self.in_doubt = self.in_doubt or bool(faults)
        if any(map(half_done, faults)):
            self.force()

    def force(self) -> None:
        """Queue what has no verdict, marked or not: the mark may be ours, without a request."""
        self._forced = True
