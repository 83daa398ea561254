"""A call that Redis carried out in part, or a registration that came twice: nothing is lost."""

import socket
import threading

import pytest
from support.contract import fingerprints
from support.layouts import name_of_add, name_of_join
from support.proxy import Proxy
from support.waiting import until

from scrapy_bloom import BackendError, RedisFilter


class Broken:
    """A filter of which one key was replaced by something else; `repair` puts it back."""

    def __init__(self, server, key, number, layout, **options):
        # In each layout several keys, and items of 20 that belong to each.
        sizes = {"bitmap": ("1M", 1e-9), "sets": (1000, 1e-6)}
        capacity, error_rate = sizes[layout]
        self.seen = RedisFilter.from_url(
            server.url,
            key=key,
            layout=layout,
            capacity=capacity,
            error_rate=error_rate,
            cache=0,
            timeout=4.0,
            **options,
        )
        self.seen.add_many(fingerprints(50, "before"))
        self._client = server.client()
        names = sorted(self._client.keys(f"{key}:*:[0-9]*.[0-9]*"))
        assert len(names) > 1
        self._name = names[number]
        self._client.rename(self._name, key + "backup")
        self._client.rpush(self._name, "foreign")

    def repair(self):
        self._client.delete(self._name)
        self._client.rename(f"{self._name.decode().partition(':{')[0]}backup", self._name)


@pytest.mark.parametrize("number", [0, 1])
def test_the_repeat_of_a_call_that_broke_half_way_finds_no_bits_of_its_own(
    server, key, number, layout
):
    broken = Broken(server, key, number, layout, on_error="wait", wait=30)
    new = fingerprints(20, "new")

    def repair():
        until(lambda: broken.seen.counters.outages)
        broken.repair()

    helper = threading.Thread(target=repair)
    helper.start()
    assert broken.seen.add_many(new) == [False] * 20
    helper.join()
    assert broken.seen.add_many(new) == [True] * 20
    assert broken.seen.counters.losses == 0
    broken.seen.close()


@pytest.mark.parametrize("number", [0, 1])
def test_what_broke_half_way_and_raised_is_new_when_it_is_asked_again(server, key, number, layout):
    broken = Broken(server, key, number, layout, on_error="close")
    new = fingerprints(20, "new")
    with pytest.raises(BackendError, match="something else than our bits"):
        broken.seen.add_many(new)
    broken.repair()
    until(lambda: broken.seen.usable)
    assert broken.seen.add_many(new) == [False] * 20
    assert broken.seen.add_many(new) == [True] * 20
    broken.seen.close()


class LateRegistration(Proxy):
    """A proxy that delivers the registration once more, just before request `before`."""

    before = 0

    def __init__(self, port, layout):
        super().__init__(port, counted=name_of_add(layout, 1e-6))
        self.join = name_of_join(layout)

    def fault(self, request):
        if self.join in request:
            self.registration = request
        fault = super().fault(request)
        if self.counted in request and self.requests == self.before:
            with socket.create_connection(("127.0.0.1", self.upstream)) as late:
                late.sendall(self.registration)
                assert late.recv(1000).startswith(b"*")
        return fault


@pytest.mark.parametrize("earlier", [0, 1])
def test_a_registration_that_comes_twice_keeps_the_answer_of_the_last_call(
    server, key, earlier, layout
):
    options = {"key": key, "capacity": 1000, "layout": layout}
    RedisFilter.from_url(server.url, **options).close()  # the server has the script
    with (
        LateRegistration(server.port, layout) as proxy,
        RedisFilter.from_url(proxy.url, cache=0, **options) as seen,
    ):
        for item in fingerprints(earlier, "earlier"):
            seen.add(item)
        proxy.faults = {earlier + 1: "drop reply"}
        proxy.before = earlier + 2
        new = fingerprints(5)
        assert seen.add_many(new) == [False] * 5
        assert seen.counters.ambiguous == 1
        assert seen.counters.losses == 0
        assert seen.add_many(new) == [True] * 5
