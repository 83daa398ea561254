"""What one call says: by names that both sides know, and whatever is in it, it can be written."""

import re
from importlib.resources import files

import pytest

from scrapy_bloom.redis.wire import Call, pack

SCRIPTS = files("scrapy_bloom.redis") / "lua"
NAMED = re.compile(r"\bsaid\.(\w+)")


def test_flags_numbers_and_entries_are_those_of_lua(server):
    text = "local it = cmsgpack.unpack(ARGV[1]); return {it.yes and 1, it.no or 2, it.at[7]}"
    said = pack({"yes": True, "no": False, "at": {7: "seven"}})
    assert server.client().eval(text, 0, said) == [1, 2, b"seven"]


CALLER = {"epoch", "worker", "number", "answered", "lease"}
MORE = {"comes", "holds_version", "most", "ahead", "lead"}
MARKS, REQUESTS = {*Call().marks(bytes)}, {*Call().requests(bytes)}


@pytest.mark.parametrize(
    ("scripts", "names"),
    [(["mark"], CALLER | MARKS), (["call", "_take"], CALLER | MORE | MARKS | REQUESTS)],
)
def test_what_is_said_is_read(scripts, names):
    """A name that only one side knows is nothing to the other, and no error."""
    texts = [(SCRIPTS / f"{script}.lua").read_text("utf-8") for script in scripts]
    assert {*NAMED.findall("".join(texts))} == names


def test_halves_of_characters_become_question_marks():
    """A call that cannot be written is in the way of all that follow."""
    assert pack("a\ud800") == pack("a?")
