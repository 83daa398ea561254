"""The benchmarks: what they keep is whole, what we claim of it holds, and the parts run."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from support.localsite import SteadySite

from bench import claims, killing, results
from bench.claims import CLAIMS
from bench.harness import Sample, in_turn, mean_of, summed, take_turns
from bench.killing import Stop
from bench.part import Column
from bench.parts import PARTS, kills
from bench.schedulers import OURS, SCHEDULERS, SCRAPY
from bench.slow_network import SlowNetwork
from bench.workers import GrowingSite

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def kept():
    return results.read()


def test_every_part_is_kept_in_full_with_its_setting(kept):
    assert set(kept) == set(PARTS)
    for result in kept.values():
        assert not result["quick"]
        assert {"processor", "cores", "memory_gb", "system"} == set(result["machine"])
        assert {"Python", "scrapy-bloom", "bitarray", "mmh3"} <= set(result["versions"])


def test_every_column_has_something_to_show(kept):
    for name, part in PARTS.items():
        for table in part.tables:
            rows = kept[name]["tables"][table.name]
            for column in table.columns:
                assert any(column.show(row) for row in rows), (name, table.name, column.key)


def test_every_plot_is_there():
    drawn = {path.stem for path in (ROOT / "docs" / "plots").glob("*.svg")}
    named = {plot.name for part in PARTS.values() for plot in part.plots}
    assert drawn == {"demo"} | named | {f"{name}-dark" for name in named}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text)
def test_what_we_claim_holds(kept, claim):
    assert claim.holds(kept)


def test_a_claim_is_about_one_row():
    found = {"part": {"tables": {"table": [{"a": 1, "b": 1}, {"a": 1, "b": 2}]}}}
    assert claims.row(found, "part", "table", b=2) == {"a": 1, "b": 2}
    for fields in ({"a": 1}, {"a": 3}):
        with pytest.raises(LookupError):
            claims.row(found, "part", "table", **fields)


def test_a_column_shows_units_spread_and_nothing():
    column = Column("cpu", "µs", ".1f", 1e-6, spread=True)
    assert column.show({"cpu": 2e-6, "cpu_low": 1e-6, "cpu_high": 3e-6}) == "2.0 (1.0 to 3.0)"
    assert column.show({"cpu": 2e-6}) == "2.0"
    assert column.show({}) == ""
    assert Column("name", "").show({"name": "as it is"}) == "as it is"


def test_candidates_take_turns_in_both_orders():
    order = []

    def prepare(name):
        yield partial(order.append, name), 1

    samples = take_turns({name: partial(prepare, name) for name in "abc"}, 3)
    assert "".join(order) == "abccbaabc"
    assert [len(parts[0]) for parts in samples.values()] == [3, 3, 3]
    assert in_turn("abc", 1) == ["c", "b", "a"]


def test_the_median_is_told_with_its_spread():
    new = [Sample(1, 2), Sample(5, 6), Sample(3, 4)]
    row = summed(new)
    assert (row["cpu"], row["cpu_low"], row["cpu_high"], row["wall"]) == (3, 1, 5, 4)
    assert mean_of([new, [Sample(3, 4)] * 3])[0] == Sample(2, 3)


@pytest.mark.parametrize("part", ["memory", "kills"])
def test_a_part_runs_and_can_be_shown(part, tmp_path):
    file = tmp_path / "result.json"
    command = [sys.executable, "-m", "bench", part, "--quick", "--into", str(file)]
    folders = os.pathsep.join(
        str(ROOT / name) for name in ("benchmarks", "tests", "example_project")
    )
    environment = os.environ | {"PYTHONPATH": folders}
    subprocess.run(command, check=True, env=environment, cwd=ROOT / "benchmarks")
    [(name, result)] = json.loads(file.read_text()).items()
    assert name == part
    for table in PARTS[part].tables:
        assert result["tables"][table.name]
    assert all(isinstance(said, str) for said in PARTS[part].findings(result["tables"]))


@pytest.mark.parametrize("name", [OURS, SCRAPY])
def test_a_crawl_is_killed_and_goes_on(name, tmp_path):
    with SteadySite(pages=120, links=6) as site:
        killed = killing.crawl(
            site.url,
            SCHEDULERS[name],
            tmp_path,
            [Stop(40, 0), Stop(0, 0, signal.SIGINT)],
            alarm=lambda number, do: site.when(sum(site.hits.values()) + number + 1, do),
        )
        assert killed.finished
        assert killed.kills == 1
        assert 1 <= killed.under_way[0] <= 120
        items, torn = kills.read_items(site, killing.items_file(tmp_path))
        assert not torn
        assert items.keys() <= site.hits.keys()
        if name == OURS:
            assert not site.missed
            assert items.keys() == site.hits.keys()


def test_a_growing_site_shows_every_crawl_as_much_in_any_order():
    for first in ([0, 1, 2, 3, 4], [0, 4, 1, 3, 2]):
        site = GrowingSite()
        pages = [set(site.hrefs(page)) for page in first]
        assert [len(links) for links in pages[1:3]] == [97, 63]
        assert [len(links) for links in pages[3:]] == [114, 46]
        shown = {"/"} | pages[0]
        for links in pages[1:]:
            assert len(links - shown) == 10
            shown |= links
        assert set(site.hrefs(first[1])) == pages[1]


def test_what_a_slow_network_is_sent_in_pieces_is_late_once():
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


def test_moments_of_kills_are_the_same_each_time():
    moments = [killing.random_stops(random.Random(1), 100, 50) for _ in range(2)]
    assert moments[0] == moments[1]
    answers = [stop.answers for stop in moments[0] if stop.answers is not None]
    assert 60 <= len(answers) < 100
    assert 1 <= min(answers) <= max(answers) <= 50


def test_a_part_that_does_not_exist_is_refused():
    command = [sys.executable, "-m", "bench", "cores"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT / "benchmarks", check=False
    )
    assert done.returncode == 2
    assert "no part is called cores; there are request-seen, urls" in done.stderr
