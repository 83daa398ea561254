"""Workers that share a crawl in Redis, and what happens to them and to the server."""

from contextlib import nullcontext
from functools import partial, partialmethod
from math import inf

from support.simulation import servers
from support.simulation.account import SharedAccount
from support.simulation.servers import BASE, KEY, Servers
from support.simulation.world import World

_TAKES_A_PART = {"key", "keys", "queue", "later", "bodies", "failed", "dead_before", "dead_after"}
"""Faults by which a server loses only some of what it has: then the account is right later."""


class SharedWorld(World):
    """One history of a crawl in Redis.

    Args:
        url: of a Redis server that nobody else uses.
    """

    place = {"BLOOM_REDIS_URL": "redis://simulated", "BLOOM_REDIS_KEY": KEY}  # noqa: RUF012
    without = ()  # what is replaced in the scripts, and by what: for controls that must lose
    loss = 0.03  # share of calls that get lost, and of replies
    most_calls = inf  # that all workers may make

    def __init__(self, url, seed, **options):
        self.servers = Servers(url, self, dict(options.get("without", ())))
        servers.install(self)
        is_whole = _TAKES_A_PART.isdisjoint(options["faults"])
        self.account = SharedAccount(self) if is_whole else None
        self._shots, self._first = [], {}
        super().__init__(seed, **options)
        if self.faulty:
            self.after(4.0, self._shoot)

    def spawn(self):
        process = super().spawn()
        process.side = self.servers.home
        return process

    def stored(self):
        return nullcontext(self.running.side)

    def _shoot(self):
        """Keep what the server has: it may go back to that."""
        if self.faulty:
            self._shots = [*self._shots[-20:], self.servers.shot(self.servers.home)]
            self.after(self.chance.uniform(1, 8), self._shoot)

    def calm_down(self):
        super().calm_down()
        self.servers.is_full = False
        self._heal()

    @property
    def will_retry(self):
        return (
            self.servers.left()["failed"] > 0 or self.servers.now.exists(BASE + "failed_ways") > 0
        )

    @property
    def lost(self):
        """Pages that a page or the spider has led to, and that are not parsed."""
        if not self.site.moves:  # all are
            return self.site.lost
        site, requests = self.site, SharedAccount(self).requests(self.servers.home)
        done = [page for page in site.links if site.parsed[page] and page not in requests]
        reached = {*site.seeds, *(link.page for page in done for link in site.links[page])}
        return [page for page in site.lost if page in reached]

    def check_end(self):
        super().check_end()
        left = self.servers.left()
        if any(left.values()):
            self.wrong.append(f"something is left: {left}")
        if self._changes > self.most_calls:
            self.wrong.append(f"{self._changes} calls")

    # What happens to workers

    def fault_kill_all(self):
        for process in self.alive:
            if process is not self.running:
                process.kill()
        self.spawn_later(1)

    def fault_join(self):
        self.spawn_later(0)

    def fault_freeze(self):
        if process := self.pick():
            process.freeze(self.chance.choice((5, 20, 45, 100)))

    def fault_speed(self):
        if process := self.pick():
            process.clock.run_at(self.chance.choice((0.5, 1.0, 1.2, 2.0)))

    def fault_cut(self):
        """A worker reaches no server for a time."""
        if process := self.pick():
            process.side = None

            def mend():
                if process.side is None:
                    process.side = self.servers.home

            self.after(self.chance.choice((1, 10, 45, 100)), mend)

    # What happens to the server

    def fault_late(self):
        self.servers.repeat_late()

    def fault_back(self):
        if self._shots and not self._is_split:
            self.servers.put_back(self.servers.home, self.chance.choice(self._shots))
            self._shots = []

    def fault_flush(self):
        if not self._is_split:
            self.servers.put_back(self.servers.home, {})
            self._shots = []

    def fault_key(self):
        self.servers.delete()

    def fault_keys(self):
        self.servers.delete(0.4)

    def _lose(self, name):
        self.servers.now.delete(BASE + name)

    fault_queue, fault_later = partialmethod(_lose, "queue"), partialmethod(_lose, "later")
    fault_bodies, fault_failed = partialmethod(_lose, "bodies"), partialmethod(_lose, "failed")

    def fault_dead_before(self, loss="before"):
        """One is taken for dead, the others die, and the server loses something.

        That happens just before it gets its new name. Who takes it for dead crawls nothing itself.
        """
        worker = self.pick()
        if worker and not any(process.loss for process in self.alive):
            worker.freeze(100)
            worker.loss = loss
            for process in self.alive:
                if process is not worker:
                    process.kill()
            other = self.spawn()
            self.after(2, partial(other.block, 100))
            self.after(90, other.kill)

    fault_dead_after = partialmethod(fault_dead_before, "after")
    """The same between its new name and its first call."""

    def lose_if_due(self, moment):
        """Lose something if a worker gets a new name, and this was to happen at this moment."""
        if self.running.loss == moment:
            self.running.loss = None
            self.chance.choice((self._go_back_to_the_first, self.fault_flush, self.fault_queue))()
        elif moment == "after" and not self._first:
            self._first = self.servers.shot(self.servers.home)

    def _go_back_to_the_first(self):
        """Let the server have what it had before the first request."""
        self.servers.put_back(self.servers.home, self._first)

    def fault_set_back(self):
        self.servers.skew[self.servers.home] -= self.chance.choice((3, 100, 4000))

    def fault_set_ahead(self):
        self.servers.skew[self.servers.home] += self.chance.choice((3, 100, 90_000))

    def fault_full(self):
        """It has no memory for a time."""
        self.servers.is_full = True
        mend = partial(vars(self.servers).update, is_full=False)
        self.after(self.chance.choice((0.5, 5, 40)), mend)

    @property
    def _is_split(self):
        return any(process.side not in (self.servers.home, None) for process in self.alive)

    def fault_split(self):
        """Some workers reach a replica that takes itself for the primary, and may be late."""
        if self._is_split:
            return
        servers, chance = self.servers, self.chance
        other = 1 - servers.home
        late = self._shots[-4:] if chance.random() < 0.6 else ()
        servers.put_back(other, chance.choice(late) if late else servers.shot(servers.home))
        servers.skew[other] = servers.skew[servers.home] + chance.choice((0, 0, 0.3, -0.3, 5, -5))
        for process in self.alive:
            if chance.random() < 0.5:
                process.side = other
        self.after(chance.choice((2, 10, 40, 100)), self._heal)

    def _heal(self):
        """All reach one server again, and what the other one has is gone."""
        if self._is_split and self.chance.random() < 0.5:
            self.servers.home = 1 - self.servers.home
        for process in self.processes:
            process.side = self.servers.home
        self._shots = []
