"""What a worker that crawls many hosts is told to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """What the spider does.

    Attributes:
        hosts: how many it visits.
        port: of each.
        starts: requests that ``start()`` yields for each host.
        follows: whether it follows links.
        blocks: the share of pages at which the callback blocks the process.
        block: for how many seconds.
        proxies: how many there are, each with a pace of its own; 0 for none.
        stays: whether it stays when there is nothing to do.
    """

    hosts: int
    port: int
    starts: int = 1
    follows: bool = True
    blocks: float = 0.0
    block: float = 0.0
    proxies: int = 0
    stays: bool = True
