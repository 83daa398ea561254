"""What one call says: Redis reads it as it was meant, by names that both sides know."""

import re
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.redis.wire import Call, pack

SCRIPTS = files("scrapy_bloom.redis") / "lua"
NAMED = re.compile(r"\bsaid\.(\w+)")
VALUES = st.recursive(
    st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=20,
)
ECHO = """
local function tell(value)
  if type(value) ~= 'table' then
    return type(value) == 'number' and string.format('%.17g', value) or value
  end
  local told = {}
  for i, each in ipairs(value) do told[i] = tell(each) end
  return told
end
return tell(cmsgpack.unpack(ARGV[1]).said)
"""


def as_told(value):
    """Return a value as Lua sees it: numbers by their digits."""
    if isinstance(value, list):
        return [as_told(each) for each in value]
    return value if isinstance(value, bytes) else b"%.17g" % value


@pytest.fixture(scope="module")
def echo(server):
    return server.client().register_script(ECHO)


@given(value=VALUES)
def test_redis_reads_what_is_said(echo, value):
    assert echo(args=[pack({"said": value})]) == as_told(value)


@pytest.mark.parametrize("size", [31, 32, 65_535, 65_536, 5_000_000])
def test_bytes_of_any_length_arrive(echo, size):
    assert echo(args=[pack({"said": bytes(size)})]) == bytes(size)


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
