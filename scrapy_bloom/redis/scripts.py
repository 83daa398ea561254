"""What runs inside Redis. Each script is atomic, and all that a filter stores is written here.

Every script has the same two keys, in one slot of a cluster:

- ``KEYS[1]``: the header, a hash; see `header` for its fields.
- ``KEYS[2]``: what the names of the segments begin with. Segment *j* of slice *i*, counted from 0,
  is the string ``KEYS[2] .. i .. "." .. j``: :data:`SEGMENT_BLOCKS` blocks of 8 KiB (fewer in the
  last segment of a slice), and one byte more whose first bit is set for as long as the segment
  lives. A check reads that bit with the others, so a segment that was evicted or deleted is noticed
  by the first check that needs it.

Probes come as they are hashed, :data:`PROBE_BYTES` each. Scripts that read them are made for the
filter's number of positions in one.

``ARGV[1]`` is always the signature of the filter that the caller knows; a script does nothing to
another one. Answers are lists that begin with a word.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from string import Template
from typing import Final

from scrapy_bloom.core.hashing import PROBE_BYTES

SEGMENT_BLOCKS: Final = 511
"""Blocks in a segment: just below 4 MiB, because exactly 4 MiB would take 5 of the allocator."""


class Script:
    """One Lua script and the name by which Redis knows it.

    Attributes:
        source: the text.
        sha: its SHA-1, in hex.
    """

    __slots__ = ("sha", "source")

    def __init__(self, source: str) -> None:
        self.source = source.strip()
        self.sha = sha1(self.source.encode(), usedforsecurity=False).hexdigest()


OPEN: Final = Script("""
-- Find a filter or make one.
-- ARGV[2...]: fields and values of a new header.
-- Answers {"type", type} if the key is no hash, else {"ok", made (0 or 1), field, value, ...}.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'hash' then return {'type', kind} end
if kind == 'none' then redis.call('HSET', KEYS[1], unpack(ARGV, 2)) end
local answer = redis.call('HGETALL', KEYS[1])
table.insert(answer, 1, 'ok')
table.insert(answer, 2, kind == 'none' and 1 or 0)
return answer
""")

JOIN: Final = Script("""
-- Register a worker, and forget those that have stopped without a word.
-- ARGV: 2 worker, 3 seconds that its lease lasts.
-- Answers {"other"} or {"ok", how many workers were forgotten, how many others live}.
if redis.call('HGET', KEYS[1], 'signature') ~= ARGV[1] then return {'other'} end
-- Commands that are needed later fail now if this user may not use them.
local trial = KEYS[2] .. 'trial'
redis.call('SETBIT', trial, '0', '1')
redis.call('BITFIELD', trial, 'SET', 'u1', '0', '1')
redis.call('BITFIELD_RO', trial, 'GET', 'u1', '0')
redis.call('EXISTS', trial)
redis.call('UNLINK', trial)
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local dead, live = 0, 0
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  if fields[i]:sub(1, 2) == 'l:' then
    local name = fields[i]:sub(3)
    if tonumber(fields[i + 1]) < now then
      redis.call('HDEL', KEYS[1], 'l:' .. name, 'w:' .. name)
      dead = dead + 1
    else
      live = live + 1
    end
  end
end
redis.call('HSET', KEYS[1], 'w:' .. ARGV[2], '0 ok ',
  'l:' .. ARGV[2], string.format('%.6f', now + ARGV[3]))
return {'ok', dead, live}
""")

RENEW: Final = Script("""
-- Renew a worker's lease.
-- ARGV: 2 worker, 3 seconds that its lease lasts.
-- Answers {"other"}, {"stranger"} if the worker was forgotten, or {"ok"}.
if redis.call('HGET', KEYS[1], 'signature') ~= ARGV[1] then return {'other'} end
if redis.call('HEXISTS', KEYS[1], 'w:' .. ARGV[2]) == 0 then return {'stranger'} end
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
redis.call('HSET', KEYS[1], 'l:' .. ARGV[2], string.format('%.6f', now + ARGV[3]))
return {'ok'}
""")

LEAVE: Final = Script("""
-- Take a worker off the register.
-- ARGV: 2 worker.
if redis.call('HGET', KEYS[1], 'signature') ~= ARGV[1] then return {'other'} end
redis.call('HDEL', KEYS[1], 'l:' .. ARGV[2], 'w:' .. ARGV[2])
return {'ok'}
""")

LIVE: Final = Script("""
-- Tell the other workers that live.
-- ARGV: 2 worker.
-- Answers {"other"} or {"ok", worker, end of its lease, ...}.
if redis.call('HGET', KEYS[1], 'signature') ~= ARGV[1] then return {'other'} end
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local answer = {'ok'}
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local name = fields[i]:sub(3)
  if fields[i]:sub(1, 2) == 'l:' and name ~= ARGV[2] and tonumber(fields[i + 1]) >= now then
    answer[#answer + 1] = name
    answer[#answer + 1] = fields[i + 1]
  end
end
return answer
""")

CLEAR: Final = Script("""
-- Give up a worker's lease, and delete the filter unless other workers live. Of workers that finish
-- at the same time, the last one deletes it.
-- ARGV: 2 worker, 3 blocks in a segment.
-- Answers {"other"}, {"used", worker, end of its lease, ...} or {"ok"}.
if redis.call('HGET', KEYS[1], 'signature') ~= ARGV[1] then return {'other'} end
redis.call('HDEL', KEYS[1], 'l:' .. ARGV[2])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local used = {'used'}
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  if fields[i]:sub(1, 2) == 'l:' and tonumber(fields[i + 1]) >= now then
    used[#used + 1] = fields[i]:sub(3)
    used[#used + 1] = fields[i + 1]
  end
end
if #used > 1 then return used end
local slice = 0
for blocks in redis.call('HGET', KEYS[1], 'slices'):gmatch('%d+:[^: ]+:(%d+)') do
  for segment = 0, math.ceil(blocks / ARGV[3]) - 1 do
    redis.call('UNLINK', KEYS[2] .. slice .. '.' .. segment)
  end
  slice = slice + 1
end
redis.call('UNLINK', KEYS[1])
return {'ok'}
""")

_PARTS: Final = """
local BLOCKS = BLOCKS_IN_SEGMENT
local call, read, floor = redis.call, struct.unpack, math.floor
local slices = {}
local function know(capacity, blocks)
  slices[#slices + 1] = {capacity = tonumber(capacity), blocks = tonumber(blocks), segments = {}}
end
for capacity, blocks in text:gmatch('(%d+):[^: ]+:(%d+)') do know(capacity, blocks) end

-- Where a probe's bits are in a slice: the segment, and the offset of the block in it.
local function place(index, h)
  local slice = slices[index]
  local all = slice.blocks
  -- floor(h * all / 2^32), in parts, because doubles are exact only up to 2^53.
  local high = floor(h / 65536)
  local low = h - high * 65536
  local block = floor((high * all + floor(low * all / 65536)) / 65536)
  local number = floor(block / BLOCKS)
  local segment = slice.segments[number]
  if not segment then
    local first = number * BLOCKS
    local name = (index - 1) .. '.' .. number
    local mark = string.format('%d', math.min(BLOCKS, all - first) * 65536)
    segment = {name = name, key = KEYS[2] .. name, first = first, mark = mark}
    slice.segments[number] = segment
  end
  return segment, (block - segment.first) * 65536
end

local function all_set(bits)
  for i = 2, #bits do
    if bits[i] == 0 then return false end
  end
  return true
end

-- Whether all bits of a probe are set, nil if the segment is not there; and the segment.
-- Few bits first: they end most searches in a slice that does not have the item. Offsets are made
-- texts all at once: of numbers Redis makes texts by itself, one by one and slowly.
local function has(index, @probe)
  local segment, base = place(index, h)
  local @few = read(@few_texts, string.format(@few_numbers, @few_offsets))
  local bits = call('BITFIELD_RO', segment.key, 'GET', 'u1', segment.mark, @get_few)
  if bits[1] == 0 then return nil, segment end
  if not all_set(bits) then return false, segment end
@look_at_rest
  return true, segment
end
""".replace("BLOCKS_IN_SEGMENT", str(SEGMENT_BLOCKS))

_REST: Final = """
  local @rest = read(@rest_texts, string.format(@rest_numbers, @rest_offsets))
  bits = call('BITFIELD_RO', segment.key, 'GET', 'u1', segment.mark, @get_rest)
  if not all_set(bits) then return false, segment end
"""

_FEW: Final = 4


class _Template(Template):
    delimiter = "@"


def _unrolled(source: str, hashes: int) -> Script:
    """Return a script for probes of so many positions, each in a variable of its own.

    With tables of them the server would work a fifth longer.
    """
    names = [f"p{number}" for number in range(1, hashes + 1)]
    words = {
        "probe": ", ".join([*names, "h"]),
        "layout": f"'>{'H' * hashes}{'x' * (PROBE_BYTES - 2 * hashes - 4)}I4'",
    }
    for group, some in {"few": names[:_FEW], "rest": names[_FEW:], "all": names}.items():
        words |= {
            group: ", ".join(some),
            f"{group}_offsets": ", ".join(f"base + {name}" for name in some),
            f"{group}_numbers": "'" + r"%d\0" * len(some) + "'",
            f"{group}_texts": "'" + "s" * len(some) + "'",
            f"get_{group}": ", ".join(f"'GET', 'u1', {name}" for name in some),
            f"set_{group}": ", ".join(f"'SET', 'u1', {name}, '1'" for name in some),
        }
    words["look_at_rest"] = _Template(_REST).substitute(words) if hashes > _FEW else ""
    return Script(_Template(source).substitute(words))


_ADD: Final = (
    """
-- Add a batch and say for each item whether it was there.
-- ARGV: 2 worker, 3 four words: number of this call, number of the last call whose answer the
--   worker has, "1" to look for lost segments, and how many slices the worker knows of, "-" if it
--   names none to add; 4 all probes in one string; 5, if it does, the slice to add when all are
--   full.
-- Answers, in one string because clients are slow to read many: "other": no such filter;
--   "stranger": the worker was forgotten; "stale": a later call has been answered; or "ok" or
--   "full", how often segments were lost, 1 if the server has gone back to an older state else 0, a
--   digit for each item, and with "full" all slices.
--   "full": the items that have no digit need a slice that the caller must name.
-- A call that was answered before gets the same answer and changes nothing.
local number, answered, look, known = ARGV[3]:match('(%d+) (%d+) (%d) (%S+)')
number, answered, known = tonumber(number), tonumber(answered), tonumber(known)
local header, worker = KEYS[1], 'w:' .. ARGV[2]
local state = redis.call('HMGET', header, 'signature', worker, 'slices', 'filled', 'losses')
if state[1] ~= ARGV[1] then return 'other' end
if not state[2] then return 'stranger' end
local text, filled, losses = state[3], tonumber(state[4]), tonumber(state[5])
local last, status, digits = state[2]:match('^(%d+) (%a+) (%d*)$')
last = tonumber(last)
local function answer(rolled_back)
  local line = status .. ' ' .. losses .. ' ' .. rolled_back .. ' ' .. digits
  return status == 'full' and line .. ' ' .. text or line
end
if number < last then return 'stale' end
if number == last then return answer(0) end
"""
    + _PARTS
    + """
local probes = ARGV[4]

local function lost(name)
  if call('HDEL', header, 'm:' .. name) == 1 then losses = losses + 1 end
end

if look == '1' then
  local fields = call('HKEYS', header)
  for i = 1, #fields do
    local name = fields[i]:match('^m:(.*)$')
    if name and call('EXISTS', KEYS[2] .. name) == 0 then lost(name) end
  end
end

local newest = #slices
-- A segment that the last command made is too short: make it again at its full size, which never
-- grows.
local function remake(segment, @all)
  lost(segment.name)
  call('UNLINK', segment.key)
  call('SETBIT', segment.key, segment.mark, '1')
  call('HSET', header, 'm:' .. segment.name, '1')
  call('BITFIELD', segment.key, @set_all)
end

local answers, position = {}, 1
status = 'ok'
while position <= #probes do
  local @probe, following = read(@layout, probes, position)
  local full = filled >= slices[newest].capacity
  local seen = false
  for index = full and newest or newest - 1, 1, -1 do
    local found, segment = has(index, @probe)
    if found == nil then lost(segment.name) end
    if found then
      seen = true
      break
    end
  end
  if not seen and full then
    if known ~= newest then
      status = 'full'
      break
    end
    text = text .. ' ' .. ARGV[5]
    know(ARGV[5]:match('^(%d+):[^: ]+:(%d+)$'))
    newest = newest + 1
    filled = 0
  end
  if not seen then
    local segment, base = place(newest, h)
    local @all = read(@all_texts, string.format(@all_numbers, @all_offsets))
    local before = call('BITFIELD', segment.key, 'GET', 'u1', segment.mark, @set_all)
    if before[1] == 0 then remake(segment, @all) else seen = all_set(before) end
    if not seen then filled = filled + 1 end
  end
  answers[#answers + 1] = seen and '1' or '0'
  position = following
end
digits = table.concat(answers)
redis.call('HSET', header, worker, number .. ' ' .. status .. ' ' .. digits, 'filled', filled,
  'slices', text, 'losses', losses)
return answer(last < answered and 1 or 0)
"""
)

_ASK: Final = (
    """
-- Say for each item of a batch whether it is there. Writes nothing.
-- ARGV: 2 probes in one string.
-- Answers {"other"} or {"ok", a digit for each item}.
local state = redis.call('HMGET', KEYS[1], 'signature', 'slices')
if state[1] ~= ARGV[1] then return {'other'} end
local text = state[2]
"""
    + _PARTS
    + """
local probes, answers, position = ARGV[2], {}, 1
while position <= #probes do
  local @probe, following = read(@layout, probes, position)
  local seen = '0'
  for index = #slices, 1, -1 do
    if has(index, @probe) then
      seen = '1'
      break
    end
  end
  answers[#answers + 1] = seen
  position = following
end
return {'ok', table.concat(answers)}
"""
)


@cache
def add(hashes: int) -> Script:
    """Return the script that adds probes of that many positions."""
    return _unrolled(_ADD, hashes)


@cache
def ask(hashes: int) -> Script:
    """Return the script that looks for probes of that many positions."""
    return _unrolled(_ASK, hashes)
