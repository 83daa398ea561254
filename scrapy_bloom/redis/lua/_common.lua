-- What all scripts share: names, the clock and slices.
-- It is prepended to each of them.
--
-- KEYS[1]  the header, a hash:
--   program, format  what this is
--   epoch            identifies the filter. A new epoch drops all earlier marks
--   plan             JSON of what all workers must agree on
--   first            geometry of the first slice: CAPACITY:RATE:BLOCKS:KEYS
--   slices           for each slice, oldest first: CAPACITY:RATE:BLOCKS:KEYS:NUMBER:SINCE:ITEMS:AGAIN
--   coming           CAPACITY:RATE:BLOCKS:KEYS:NUMBER: the slice that gets its keys, see _growth.lua
--   coming_keys      how many it has
--   going            EPOCH.NUMBER.KEYS of each slice whose first KEYS keys are to be freed
--   window           seconds that a mark is kept, 0 for no limit
--   order            "lifo" or "fifo"; empty if no requests are stored here
--   waiting, taken, failed, unparsed, bodies
--                    how many requests there were after the last script, and how many bodies
--   done             how many pages are done: a callback had them
--   not_kept         how many are unparsed, and were not stored: there were very many
--   seen             how many links were dropped, because they led to pages that were seen
--   undated          where in `failed` the next sweep goes on, which sets dates anew once `dates` is lost
--   came             when a worker came last that found no other one
--   began            when this run began: see come() in _workers.lua
--   retried          how many requests it has put back of those that failed before; not there before the first one
--   through          "1" if a worker has left after all that start() yields was stored, and none has come since
--   look             CURSOR SINCE: where in `led` look() continues, and since when; only while it goes on
--   forgotten        counts the pages that were forgotten
--   seq              the last sequence number of a request
--   contact_since    since when workers have called without a gap
--   last_contact     when one called last
--   swept            when the last sweep was
--   skew             by how many seconds the clock has gone back in all, see read_clock()
--   sweep            where in `taken` the next sweep continues
--   walk             the slot at which rebuilding `turns` continues; only while it is being rebuilt
--   delay            seconds between requests of a slot that is not in `delays`: the longest that a worker wants
--   workers, hosts, paused
--                    at the last sweep: how many workers were alive, how many slots had requests, and how many were
--                    paused
--   pauses_version   a number that grows whenever workers are to learn which slots are paused
--   deleted          the epoch that a user deleted last
--   w:WORKER         NUMBER LEASE DELAY: its last call, when its lease ends, and its own `delay`. NUMBER dead
--                    SINCE: a tombstone of a worker that missed its lease; with the word "blocked" of one that gave
--                    it up, or "named" if it has reported which page did that
--   a:WORKER         DIGITS IDS: the answer to that call
-- KEYS[2]  the prefix of all other keys. No key may ever have this very name: because it is missing, a Redis Cluster
--          refuses all scripts while their slot moves to another node (TRYAGAIN), and none finds only some of its keys:
--   queue            sorted set of the waiting requests, see _queue.lua
--   later            sorted set: waiting requests that may not be sent yet -> when they may
--   turns            sorted set: download slot with requests -> when it is served next
--   frees            sorted set: download slot without requests -> when it may be served again
--   paused           sorted set: download slot that is paused -> until when
--   delays           hash: download slot -> DELAY JITTER, where these are not the default
--   taken            hash: WORKER and 8 bytes -> START NEXT DELAY JITTER LISTED HEAD, see _queue.lua
--   bodies           hash: 8 bytes of each request in one of these, or in one of the next two -> its body, see _queue.lua
--   failed           hash: 8 bytes, or 16 of a start request -> what has failed, see _failed.lua
--   dates            sorted set: the same -> when it was listed there
--   unparsed         hash: the same -> what no callback got, which is no failure; or it has failed too often
--   led              hash: keys of `unparsed` -> probes of where redirects led, to a seen page last
--   failed_ways      sorted set: probes of where redirects of failed pages led -> when they failed; see look()
--   reasons          hash: why requests in `failed` are there -> how many are
--   decisions        hash: the same of `unparsed`
--   starts           hash: 16 bytes of an unfiltered start request -> "d" if it is done, else WORKER HEAD: who sent it
--                    last, and its head then
--   EPOCH.N.S        key S of slice N: up to 511 blocks of bits
--   EPOCH.N.again    set of the probes in slice N that count as absent, because they were forgotten
--   EPOCH.N.ages     hash of probes with a maximum age -> when they were last let through
local call, unpack = redis.call, table.unpack or unpack
local header, base = KEYS[1], KEYS[2]
local queue, later, taken, failed = base .. 'queue', base .. 'later', base .. 'taken', base .. 'failed'
local bodies, unparsed, dates = base .. 'bodies', base .. 'unparsed', base .. 'dates'
local led, failed_ways = base .. 'led', base .. 'failed_ways'
local reasons, decisions, starts = base .. 'reasons', base .. 'decisions', base .. 'starts'
local turns, frees, paused, delays = base .. 'turns', base .. 'frees', base .. 'paused', base .. 'delays'
local time = call('TIME')
local now = time[1] + time[2] / 1000000

local function format_time(microseconds) return string.format('%d', microseconds) end

local function read_numbers(text)
  local numbers = {}
  for word in text:gmatch('%S+') do numbers[#numbers + 1] = tonumber(word) end
  return unpack(numbers)
end

-- Return fields of the header, by their names.
local function read_header(...)
  local names, found = {...}, {}
  for i, value in ipairs(call('HMGET', header, ...)) do found[names[i]] = value end
  return found
end

-- Return a worker's last call, when its lease ends, and its delay; for a tombstone the call, 'dead', and since when.
local function read_worker(record)
  local number, expires, delay = (record or ''):match('^(%d+) (%S+) ?(%S*)')
  return tonumber(number), expires == 'dead' and expires or tonumber(expires), tonumber(delay)
end

-- Return all workers by their names, also dead ones: for each what read_worker() says, and whether it was blocked.
local function read_workers()
  local workers = {}
  for _, field in ipairs(call('HKEYS', header)) do
    if field:sub(1, 2) == 'w:' then
      local record = call('HGET', header, field)
      local number, expires, delay = read_worker(record)
      workers[field:sub(3)] = {number = number, expires = expires, delay = delay,
        blocked = record:find('blocked', 1, true), named = record:find('named', 1, true)}
    end
  end
  return workers
end

-- Whether there is a lease, and it is valid. One that ends much later was given before the clock went back.
local function is_valid(expires, lease)
  return type(expires) == 'number' and expires > now and expires <= now + 2 * lease
end

local function read_slices(text, epoch)
  local slices = {}
  local ROW = '((%d+):[^:]+:(%d+):(%d+)):(%d+):([^:]+):(%d+):(%d+)'
  for geometry, capacity, blocks, keys, number, since, items, again in text:gmatch(ROW) do
    slices[#slices + 1] = {
      geometry = geometry,
      capacity = tonumber(capacity),
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
    rows[i] = string.format('%s:%d:%.6f:%d:%d', slice.geometry, slice.number, slice.since,
      slice.items, slice.again)
  end
  return table.concat(rows, ' ')
end

-- Return the live slices, and the expired ones. Dates in the future become now: the clock went back.
-- A slice lives for 9/8 of the window.
local function divide(slices, window)
  local live, over = {}, {}
  if window == 0 then return slices, over end
  for _, slice in ipairs(slices) do
    slice.since = math.min(slice.since, now)
    local group = slice.since + window * 9 / 8 <= now and over or live
    group[#group + 1] = slice
  end
  return live, over
end

-- The answer to a worker of another epoch.
local function other_epoch(epoch, deleted)
  return {deleted == epoch and 'deleted' or 'gone'}
end
