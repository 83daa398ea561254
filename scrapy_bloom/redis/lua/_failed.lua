-- The failed list, and what becomes of the pages. It is prepended to the scripts about requests, after _queue.lua.
--
-- A row of `failed`:
--   4 bytes, the run in which it failed; 1 byte, 1 if it is given up: it stays until it is put back by hand
--   a double: when it failed; 2 bytes, a length; so many bytes: what it counts as in `reasons`
--   4 bytes, a length; so many bytes of JSON: kind, message, date, tries, worker; the member of `queue` to put back
local HOUR, MOST_KINDS, MOST_STARTS = 3600, 100, 100000
local COUNTERS = {d = 'done', r = 'redirected'}
local counters = {done = 0, redirected = 0}  -- of the header; whoever changes them reads and writes them

-- Change a count in a hash; return what was counted there: kinds beyond the first ones are "others".
local function tally(key, kind, by)
  if kind == '' then return kind end
  local before = call('HGET', key, kind)
  if not before and by > 0 and call('HLEN', key) >= MOST_KINDS then
    kind = 'others'
    before = call('HGET', key, kind)
  end
  local after = tonumber(before or 0) + by
  if after > 0 then call('HSET', key, kind, format_time(after)) else call('HDEL', key, kind) end
  return kind
end

-- Take a row from the list; return the member that it has, nil if it is not there.
local function unlist(key, value)
  if not value or call('HDEL', failed, key) == 0 then return nil end
  local _, _, _, kind, at = struct.unpack('>IBdHc0', value)
  tally(reasons, kind, -1)
  local length, from = struct.unpack('>I', value, at)
  return value:sub(from + length)
end

local function list(key, given_up, kind, packed)
  unlist(key, call('HGET', failed, key))
  local run = tonumber(call('HGET', header, 'run') or 0)
  kind = tally(reasons, kind, 1)
  call('HSET', failed, key, struct.pack('>IBdHc0', run, given_up, now, #kind, kind) .. packed)
end

-- List a request that no worker has told about, after so many deaths. One that workers died with stays until it is put
-- back by hand; what nobody can read is tried again by the next run.
local function fail(member, reason, deaths)
  local at = deaths_at(member)
  local head = string.format('["%s", "", %.3f, %d, ""]', reason, now, deaths)
  member = member:sub(1, at - 1) .. '\0' .. member:sub(at + 1)
  list(member:sub(at - 8, at - 1), deaths > 0 and 1 or 0, reason, struct.pack('>I', #head) .. head .. member)
end

-- Forget how a start request has ended: it comes again. Return its member if it is on the failed list.
local function reopen(start)
  local ended = call('HGET', starts, start)
  if ended then
    call('HDEL', starts, start)
    local name = COUNTERS[ended:sub(1, 1)]
    counters[name] = math.max(0, counters[name] - 1)
    tally(statuses, ended:sub(2), -1)
  end
  return unlist(start, call('HGET', failed, start))
end

-- Count pages that have ended: once, if that is of a start request.
local function note_ended(kind, status, start, some)
  local name = COUNTERS[kind]
  if not name or some == 0 then return end
  if start ~= '' then
    reopen(start)
    if call('HLEN', starts) < MOST_STARTS then call('HSET', starts, start, kind .. status) end
  end
  counters[name] = counters[name] + some
  tally(statuses, status, some)
end

-- Put a portion of the list back: what earlier runs have left there, or what failed an hour ago. Return where to go on,
-- and how many these were.
local function put_failed_back(cursor, run)
  local portion, some = call('HSCAN', failed, cursor, 'COUNT', MOVED), 0
  for i = 1, #portion[2], 2 do
    local key, value = portion[2][i], portion[2][i + 1]
    local its_run, given_up, date = struct.unpack('>IBd', value)
    if given_up == 0 and (run and its_run < run or not run and date <= now - HOUR) then
      local member = unlist(key, value)
      if member then
        enqueue(member)
        some = some + 1
      end
    end
  end
  return portion[1], some
end

-- Put a taken request back in its place, or on the failed list once `most` workers have died with it, of which `new` are
-- counted now, the last for this reason. Return where it went; nil if it is not taken.
local function put_back(field, new, most, reason)
  local value = call('HGET', taken, field)
  if not value then return nil end
  call('HDEL', taken, field)
  local _, _, member = read_taken(value)
  local at = deaths_at(member)
  local deaths = math.min(255, member:byte(at) + new)
  member = member:sub(1, at - 1) .. string.char(deaths) .. member:sub(at + 1)
  if new > 0 and deaths >= most then
    fail(member, reason, deaths)
    return 'failed'
  end
  if new == 0 then free_turn(value) end
  enqueue(member)
  return 'queue'
end
