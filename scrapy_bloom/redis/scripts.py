"""What runs inside Redis. Each script is atomic, and all that a filter stores is written here.

Every script has the same two keys, in one slot of a cluster:

- ``KEYS[1]``: the header, a hash; see `header` for its fields.
- ``KEYS[2]``: what the names of the segments begin with. Segment *j* of slice *i*, counted from 0,
  is the string ``KEYS[2] .. i .. "." .. j``: :data:`SEGMENT_BLOCKS` blocks of 8 KiB (fewer in the
  last segment of a slice), and one byte more whose first bit is set for as long as the segment
  lives. A check reads that bit with the others, so a segment that was evicted or deleted is noticed
  by the first check that needs it.

``ARGV[1]`` is always the signature of the filter that the caller knows; a script does nothing to
another one. Answers are lists that begin with a word.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Final

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
local slices = {}
for capacity, blocks in text:gmatch('(%d+):[^: ]+:(%d+)') do
  slices[#slices + 1] = {capacity = tonumber(capacity), blocks = tonumber(blocks)}
end

-- Where a probe's bits are in a slice: segment's field and key, offset of its block, of its mark.
local function place(index, h)
  local all = slices[index].blocks
  -- floor(h * all / 2^32), in parts, because doubles are exact only up to 2^53.
  local high = math.floor(h / 65536)
  local low = h - high * 65536
  local block = math.floor((high * all + math.floor(low * all / 65536)) / 65536)
  local segment = math.floor(block / BLOCKS)
  local first = segment * BLOCKS
  local name = (index - 1) .. '.' .. segment
  return name, KEYS[2] .. name, (block - first) * 65536, math.min(BLOCKS, all - first) * 65536
end

-- Whether bits a..b of a probe are set; nil if the segment is not there.
local function has(key, base, mark, probe, a, b)
  local ask = {'GET', 'u1', mark}
  for i = a, b do
    local at = #ask
    ask[at + 1] = 'GET'
    ask[at + 2] = 'u1'
    ask[at + 3] = base + probe[i]
  end
  local bits = redis.call('BITFIELD_RO', key, unpack(ask))
  if bits[1] == 0 then return nil end
  for i = 2, #bits do
    if bits[i] == 0 then return false end
  end
  return true
end
""".replace("BLOCKS_IN_SEGMENT", str(SEGMENT_BLOCKS))

ADD: Final = Script(
    """
-- Add a batch and say for each item whether it was there.
-- ARGV: 2 worker, 3 six words: number of this call, number of the last call whose answer the worker
--   has, how struct.unpack reads a probe, k, "1" to look for lost segments, and how many slices the
--   worker knows of, "-" if it names none to add; 4 all probes in one string; 5, if it does, the
--   slice to add when all are full.
-- Answers, in one string because clients are slow to read many: "other": no such filter;
--   "stranger": the worker was forgotten; "stale": a later call has been answered; or "ok" or
--   "full", how often segments were lost, 1 if the server has gone back to an older state else 0, a
--   digit for each item, and with "full" all slices.
--   "full": the items that have no digit need a slice that the caller must name.
-- A call that was answered before gets the same answer and changes nothing.
local number, answered, format, k, look, known = ARGV[3]:match(
  '(%d+) (%d+) (%S+) (%d+) (%d) (%S+)')
number, answered, k, known = tonumber(number), tonumber(answered), tonumber(k), tonumber(known)
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
  if redis.call('HDEL', header, 'm:' .. name) == 1 then losses = losses + 1 end
end

if look == '1' then
  local fields = redis.call('HKEYS', header)
  for i = 1, #fields do
    local name = fields[i]:match('^m:(.*)$')
    if name and redis.call('EXISTS', KEYS[2] .. name) == 0 then lost(name) end
  end
end

-- Few bits first: they end most searches in a slice that does not have the item.
local few = math.min(4, k)
local function seen_in(index, probe)
  local name, key, base, mark = place(index, probe[k + 1])
  local found = has(key, base, mark, probe, 1, few)
  if found == nil then lost(name) end
  return found and (few == k or has(key, base, mark, probe, few + 1, k))
end

local newest = #slices
local set = {'GET', 'u1'}
for i = 1, k do
  set[4 * i], set[4 * i + 1], set[4 * i + 3] = 'SET', 'u1', '1'
end
local function add(probe)
  local name, key, base, mark = place(newest, probe[k + 1])
  set[3] = mark
  for i = 1, k do set[4 * i + 2] = base + probe[i] end
  local before = redis.call('BITFIELD', key, unpack(set))
  if before[1] == 0 then
    -- Made by this very call, and too short: made again at its full size, which never grows.
    lost(name)
    redis.call('UNLINK', key)
    redis.call('SETBIT', key, mark, '1')
    redis.call('HSET', header, 'm:' .. name, '1')
    redis.call('BITFIELD', key, unpack(set))
    return false
  end
  for i = 2, k + 1 do
    if before[i] == 0 then return false end
  end
  return true
end

local answers, position = {}, 1
status = 'ok'
while position <= #probes do
  local probe = {struct.unpack(format, probes, position)}
  local full = filled >= slices[newest].capacity
  local seen = false
  for index = full and newest or newest - 1, 1, -1 do
    if seen_in(index, probe) then
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
    local capacity, blocks = ARGV[5]:match('^(%d+):[^: ]+:(%d+)$')
    newest = newest + 1
    slices[newest] = {capacity = tonumber(capacity), blocks = tonumber(blocks)}
    filled = 0
  end
  if not seen then
    seen = add(probe)
    if not seen then filled = filled + 1 end
  end
  answers[#answers + 1] = seen and '1' or '0'
  position = probe[k + 2]
end
digits = table.concat(answers)
redis.call('HSET', header, worker, number .. ' ' .. status .. ' ' .. digits, 'filled', filled,
  'slices', text, 'losses', losses)
return answer(last < answered and 1 or 0)
"""
)

ASK: Final = Script(
    """
-- Say for each item of a batch whether it is there. Writes nothing.
-- ARGV: 2 how struct.unpack reads a probe, 3 k, 4 probes in one string.
-- Answers {"other"} or {"ok", a digit for each item}.
local state = redis.call('HMGET', KEYS[1], 'signature', 'slices')
if state[1] ~= ARGV[1] then return {'other'} end
local text = state[2]
"""
    + _PARTS
    + """
local k, answers, position = tonumber(ARGV[3]), {}, 1
while position <= #ARGV[4] do
  local probe = {struct.unpack(ARGV[2], ARGV[4], position)}
  local seen = '0'
  for index = #slices, 1, -1 do
    local _, key, base, mark = place(index, probe[k + 1])
    if has(key, base, mark, probe, 1, k) then
      seen = '1'
      break
    end
  end
  answers[#answers + 1] = seen
  position = probe[k + 2]
end
return {'ok', table.concat(answers)}
"""
)
