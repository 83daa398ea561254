-- What all scripts share: names, the clock, slices, and what to do when requests have vanished.
-- It is prepended to each of them.
--
-- KEYS[1]  the header, a hash:
--   program, format  what this is
--   epoch            identifies the filter. A new epoch drops all earlier marks
--   plan             JSON of what all workers must agree on
--   first            geometry of the first slice: CAPACITY:RATE:BLOCKS:KEYS
--   slices           for each slice, oldest first: CAPACITY:RATE:BLOCKS:KEYS:NUMBER:SINCE:ITEMS:AGAIN
--   dropped          for each slice whose keys are still to be deleted: NAME:KEYS
--   window           seconds that a mark is kept, 0 for no limit
--   order            "lifo" or "fifo"; empty if no requests are kept here
--   waiting, taken, failed
--                    how many requests there were after the last script
--   forgotten        counts the pages that were forgotten
--   seq              the last sequence number of a request
--   well             SINCE LAST: since when heartbeats have come without a gap, and the last one
--   deleted          the epoch that a user deleted last
--   w:WORKER         NUMBER LEASE: its last call, and when its lease ends. NUMBER dead SINCE: a
--                    tombstone of a worker that missed its lease
--   a:WORKER         DIGITS IDS: the answer to that call
-- KEYS[2]  the prefix of all other keys:
--   queue            sorted set of the waiting requests. Score: the priority, negated. Member: 8 bytes
--                    that order and identify the request; 1 byte, how many tries have failed; 4 bytes,
--                    1 + length of its fingerprint, or 0 without one; the fingerprint; the body
--   taken            hash, WORKER and 8 bytes -> SCORE, a space, MEMBER
--   failed           hash, 8 bytes -> SCORE, a space, MEMBER
--   EPOCH.N.S        key S of slice N: up to 511 blocks of bits
--   EPOCH.N.again    set of the probes in slice N that count as absent, because they were forgotten
--   EPOCH.N.ages     hash of probes with a maximum age -> when they were last let through
local call, unpack = redis.call, table.unpack or unpack
local header, base = KEYS[1], KEYS[2]
local queue, taken, failed = base .. 'queue', base .. 'taken', base .. 'failed'
local time = call('TIME')
local now = time[1] + time[2] / 1000000

local function read_numbers(text)
  local found = {}
  for word in text:gmatch('%S+') do found[#found + 1] = tonumber(word) end
  return unpack(found)
end

local function read_slices(text, epoch)
  local slices = {}
  for row in text:gmatch('%S+') do
    local capacity, rate, blocks, keys, number, since, items, again =
      row:match('^(%d+):([^:]+):(%d+):(%d+):(%d+):([^:]+):(%d+):(%d+)$')
    slices[#slices + 1] = {
      geometry = table.concat({capacity, rate, blocks, keys}, ':'),
      capacity = tonumber(capacity),
      rate = tonumber(rate),
      blocks = tonumber(blocks),
      keys = tonumber(keys),
      number = tonumber(number),
      since = tonumber(since),
      items = tonumber(items),
      again = tonumber(again),
      name = base .. epoch .. '.' .. number .. '.',
      segments = {},
    }
  end
  return slices
end

local function write_slices(slices)
  local rows = {}
  for i, slice in ipairs(slices) do
    rows[i] = string.format('%s:%.0f:%.6f:%.0f:%.0f', slice.geometry, slice.number, slice.since,
      slice.items, slice.again)
  end
  return table.concat(rows, ' ')
end

-- Return the live slices, and the expired ones. Dates in the future become now: the clock went back.
-- A slice lives for 9/8 of the window.
local function divide(slices, window)
  local live, over = {}, {}
  for _, slice in ipairs(slices) do
    slice.since = math.min(slice.since, now)
    local some = (window > 0 and slice.since + window * 9 / 8 <= now) and over or live
    some[#some + 1] = slice
  end
  return live, over
end

-- Drop slices. They have many keys, so heartbeats delete them a portion at a time.
local function drop(slices)
  local rows = {call('HGET', header, 'dropped') or nil}
  for _, slice in ipairs(slices) do
    call('UNLINK', slice.name .. 'again', slice.name .. 'ages')
    rows[#rows + 1] = string.format('%s:%.0f', slice.name:sub(#base + 1), slice.keys)
  end
  if #rows > 0 then call('HSET', header, 'dropped', table.concat(rows, ' ')) end
end

-- Delete a portion of the keys of dropped slices; return how many are left.
local function delete_dropped()
  local rows, left = call('HGET', header, 'dropped'), 0
  if not rows then return 0 end
  local name, keys, others = rows:match('^(%S+):(%d+) ?(.*)$')
  local names, last = {}, math.max(0, keys - 500)
  for i = last, keys - 1 do names[#names + 1] = base .. name .. string.format('%.0f', i) end
  call('UNLINK', unpack(names))
  for more in others:gmatch(':(%d+)') do left = left + more end
  if last > 0 then
    others = string.format('%s:%.0f', name, last) .. (others == '' and '' or ' ' .. others)
  end
  if others == '' then call('HDEL', header, 'dropped') else call('HSET', header, 'dropped', others) end
  return left + last
end

local function count()
  call('HSET', header, 'waiting', call('ZCARD', queue), 'taken', call('HLEN', taken), 'failed',
    call('HLEN', failed))
end

-- Put a taken request back: in its place, or behind all others if it is `late`, or on the failed list once
-- `most` tries have failed, of which `tried` are new. Return where it went; nil if it is not taken.
local function put_back(field, tried, most, late)
  local value = call('HGET', taken, field)
  if not value then return nil end
  call('HDEL', taken, field)
  local score, member = value:match('^(%S+) (.*)$')
  local tries = math.min(255, member:byte(9) + tried)
  member = member:sub(1, 8) .. string.char(tries) .. member:sub(10)
  if tried > 0 and tries >= most then
    call('HSET', failed, member:sub(1, 8), score .. ' ' .. member)
    return 'failed'
  end
  call('ZADD', queue, late and string.format('%.17g', score + 1e12) or score, member)
  return 'queue'
end

-- Put back everything taken: the workers start over under new names, so there is no lease to wait for.
local function put_all_back()
  for _, field in ipairs(call('HKEYS', taken)) do put_back(field, 0, 0) end
end

-- Drop all marks: a new epoch with one empty slice. Every worker of the old one starts over.
local function start_over()
  local epoch, text, first = unpack(call('HMGET', header, 'epoch', 'slices', 'first'))
  local slices = read_slices(text, epoch)
  drop(slices)
  put_all_back()
  call('HSET', header, 'epoch', epoch:match('^%x+') .. '-' .. time[1] .. '-' .. time[2], 'slices',
    string.format('%s:%.0f:%.6f:0:0', first, slices[#slices].number + 1, now))
  count()
end

-- Whether requests have vanished, or pages from a list of forgotten ones. Nothing may suppress these
-- pages, so all marks are dropped. Every script checks this before it counts or marks.
local function vanished(slices)
  local waiting, held, aside = unpack(call('HMGET', header, 'waiting', 'taken', 'failed'))
  local some = call('ZCARD', queue) < tonumber(waiting) or call('HLEN', taken) < tonumber(held)
    or call('HLEN', failed) < tonumber(aside)
  for _, slice in ipairs(slices) do
    some = some or (slice.again > 0 and call('SCARD', slice.name .. 'again') < slice.again)
  end
  if some then start_over() end
  return some
end

-- The answer to a worker of another epoch.
local function other_epoch(epoch, deleted)
  return {deleted == epoch and 'deleted' or 'gone'}
end
