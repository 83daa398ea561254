"""Runs of one crawl in a job directory, and what happens to them."""

import shutil
from pathlib import Path
from tempfile import mkdtemp

from scrapy_bloom.commands.local_target import requests_in
from scrapy_bloom.local.backend import account_of
from scrapy_bloom.local.metadata import IN_FLIGHT
from scrapy_bloom.local.store import NAME, reading
from support.internals import after_each_commit
from support.simulation.account import Account, by_list, by_page
from support.simulation.clock import TIME
from support.simulation.process import Process
from support.simulation.world import World


class LocalAccount(Account):
    """What is in the file of a job; a store is that, as a reader opens it."""

    def requests(self, store):
        listed = by_list((row for _, row in store.failed.stored()), self._world.site.moves)
        return by_page(listed | {"waiting": requests_in(store)})

    def marked(self, store, fingerprints):
        return store.stored.contains_many(fingerprints)

    def check(self, store):
        """Note also if what is counted cannot be right."""
        super().check(store)
        account, rows = _account_in(store), len([*store.failed.stored()])
        known = [state for state in self.states(store).values() if state not in ("unknown", "lost")]
        listed = account.failed + account.unparsed
        ended = account.done + listed
        if listed != rows or len(known) > account.pages or ended > self._world.site.begun:
            self._world.wrong.append(f"it does not add up: {account}")
            self._world.account = None


class Run(Process):
    """A process that crawls in a job directory."""

    def kill(self):
        """End it at once: what it has not committed is gone."""
        if self.alive:
            self.world.leave_as_killed()
        super().kill()


class LocalWorld(World):
    """One history of a crawl in a job directory, by one process at a time."""

    process = Run
    workers, most = 1, 1
    kills = 0.01
    """How probable a kill is right after a commit."""

    def __init__(self, _, seed, **options):
        fast = "/dev/shm" if Path("/dev/shm").is_dir() else None  # nothing here waits for a disk
        self._root, self._number = Path(mkdtemp(prefix="scrapy-bloom-", dir=fast)), 0
        self.folder = self._root / "0"
        self.account = LocalAccount(self)
        after_each_commit(lambda _: self.committed())
        super().__init__(seed, **options)

    @property
    def place(self):
        return {"JOBDIR": str(self.folder)}

    def stored(self):
        return reading(self.folder / NAME)

    def leave_as_killed(self):
        """Let the next run find what a kill leaves; the dead one still has its files open."""
        before, self._number = self.folder, self._number + 1
        self.folder = self._root / str(self._number)
        if before.exists():
            unneeded = shutil.ignore_patterns("*.lock", "*-shm")
            shutil.copytree(before, self.folder, ignore=unneeded)

    def committed(self):
        """Check the account now and then, or kill the run whose commit that was."""
        running = self.running
        if running is None or not running.alive:
            return
        self.changed()
        if self.faulty and self.chance.random() < self.kills:
            self.note("killed at a commit", running.name)
            running.kill()
            self.spawn_later(1)

    @property
    def will_retry(self):
        with self.stored() as store:
            return bool(store.failed.left)

    @property
    def lost(self):
        """Pages that a page or the spider has led to, and that are neither parsed nor listed."""
        site, covered = self.site, self._covered
        reached = {*site.seeds}
        for page in site.pages:
            if site.parsed[page] and page not in covered:
                reached |= {link.page for link in site.links[page]}
        return [page for page in site.lost if page in reached and page not in covered]

    def check_end(self):
        super().check_end()
        with self.stored() as store:
            found, account = LocalAccount(self), _account_in(store)
            requests = found.requests(store)
            self._covered = found.covered(store, requests) - found.astray(requests)
            if account.waiting or account.in_flight:
                self.wrong.append(f"something is left: {account}")
            if self.account is not None:
                self.account.check(store)
        shutil.rmtree(self._root)

    def fault_outage(self):
        self.site.away_until = TIME.now + self.chance.choice((1, 4, 15))


def _account_in(store):
    in_flight = int(store.meta.get(IN_FLIGHT, 0))
    return account_of(store.meta, store.failed.reasons, len(store), in_flight)
