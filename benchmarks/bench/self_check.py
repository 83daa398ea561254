"""See that what measures does what it says; ``make bench-quick`` begins with it."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial

from bench import claims, killing
from bench.harness import Sample, in_turn, mean_of, summed, take_turns
from bench.slow_network import SlowNetwork
from bench.workers import GrowingSite


def candidates_take_turns_in_both_orders() -> None:
    order: list[str] = []

    def prepare(name: str) -> Iterator[tuple[Callable[[], object], int]]:
        yield partial(order.append, name), 1

    samples = take_turns({name: partial(prepare, name) for name in "abc"}, 3)
    assert "".join(order) == "abccbaabc"
    assert [len(parts[0]) for parts in samples.values()] == [3, 3, 3]
    assert in_turn(list("abc"), 1) == ["c", "b", "a"]


def the_median_is_told_with_its_spread() -> None:
    new = [Sample(1, 2), Sample(5, 6), Sample(3, 4)]
    row = summed(new)
    assert (row["cpu"], row["cpu_low"], row["cpu_high"], row["wall"]) == (3, 1, 5, 4)
    assert mean_of([new, [Sample(3, 4)] * 3])[0] == Sample(2, 3)


def a_claim_is_about_one_row() -> None:
    found = {"part": {"tables": {"table": [{"a": 1, "b": 1}, {"a": 1, "b": 2}]}}}
    assert claims.row(found, "part", "table", b=2) == {"a": 1, "b": 2}
    for fields in ({"a": 1}, {"a": 3}):
        try:
            claims.row(found, "part", "table", **fields)
        except LookupError:
            continue
        raise AssertionError(fields)


def a_growing_site_shows_every_crawl_as_much_in_any_order() -> None:
    for first in ([0, 1, 2, 3, 4], [0, 4, 1, 3, 2]):
        site = GrowingSite()
        pages = [set(site.hrefs(page)) for page in first]
        assert [len(links) for links in pages[1:]] == [97, 63, 114, 46]
        shown = {"/"} | pages[0]
        for links in pages[1:]:
            assert len(links - shown) == 10
            shown |= links
        assert set(site.hrefs(first[1])) == pages[1]


def pieces_on_a_slow_network_are_late_once() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        SlowNetwork(server.getsockname()[1], 0.5) as network,
        socket.create_connection(("127.0.0.1", network.port)) as client,
    ):
        connection, _ = server.accept()
        start = time.perf_counter()
        for _ in range(20):
            client.sendall(b"piece")
            time.sleep(0.01)  # or they would be one piece
        client.shutdown(socket.SHUT_WR)
        with connection, connection.makefile("rb") as received:
            assert received.read() == b"piece" * 20
        assert 0.5 < time.perf_counter() - start < 10  # which is each piece late by itself


def kills_come_at_the_same_moments_each_time() -> None:
    moments = [killing.random_stops(random.Random(1), 100, 50) for _ in range(2)]
    assert moments[0] == moments[1]
    answers = [stop.answers for stop in moments[0] if stop.answers is not None]
    assert 60 <= len(answers) < 100
    assert 1 <= min(answers) <= max(answers) <= 50


if __name__ == "__main__":
    for check in (
        candidates_take_turns_in_both_orders,
        the_median_is_told_with_its_spread,
        a_claim_is_about_one_row,
        a_growing_site_shows_every_crawl_as_much_in_any_order,
        pieces_on_a_slow_network_are_late_once,
        kills_come_at_the_same_moments_each_time,
    ):
        check()
