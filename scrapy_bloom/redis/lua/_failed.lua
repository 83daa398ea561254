-- The failed list, and what becomes of the pages. It is prepended to the scripts about requests, after _queue.lua.
--
-- A row of `failed`:
--   4 bytes, the run in which it failed; 1 byte, 1 if it is given up: it stays until it is put back by hand
--   a double: when it failed; 2 bytes, a length; so many bytes: what it counts as in `reasons`
--   4 bytes, a length; so many bytes of JSON: kind, message, date, tries, worker; the head of the request
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

-- Take a row from the list; return the head that it has, nil if it is not there.
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
local function fail(head, reason, deaths)
  local why = string.format('["%s", "", %.3f, %d, ""]', reason, now, deaths)
  list(id_of(head), deaths > 0 and 1 or 0, reason, struct.pack('>I', #why) .. why .. with_deaths(head, 0))
end

-- Drop the body of a request, if one is given, that was taken from the list and goes nowhere.
local function drop_body(head)
  if head then call('HDEL', bodies, id_of(head)) end
end

-- Forget how a start request has ended: it comes again. Return its head if it is on the failed list.
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
    drop_body(reopen(start))
    if call('HLEN', starts) < MOST_STARTS then call('HSET', starts, start, kind .. status) end
  end
  counters[name] = counters[name] + some
  tally(statuses, status, some)
end

-- List requests that have failed: `failures` are as call.lua is told.
local function note_failed(worker, failures)
  for _, each in ipairs(failures) do
    local id, key, given_up, kind, packed, body = unpack(each)
    if call('HDEL', taken, worker .. id) == 1 then
      if key ~= '' then drop_body(reopen(key)) end
      call('HSET', bodies, id, body)
      list(key == '' and id or key, given_up, kind, packed)
    end
  end
end

-- List requests that a worker could not read: the next run, or another worker in an hour, may.
local function refuse(worker, ids)
  for _, field in ipairs(fields_of(worker, ids)) do
    local value = call('HGET', taken, field)
    if value then
      local _, _, head = read_taken(value)
      call('HDEL', taken, field)
      free_turn(value)
      fail(head, 'unreadable', 0)
    end
  end
end

-- Put requests of the list back into the queue, or count them as done: `restored` is as call.lua is told.
local function restore(restored)
  for _, each in ipairs(restored) do
    local key, head, body = unpack(each)
    local before = unlist(key, call('HGET', failed, key))
    if before and head ~= '' then
      call('HSET', bodies, id_of(head), body)
      enqueue(head)
    elseif before then
      drop_body(before)
      note_ended('d', '', #key == 16 and key or '', 1)
    end
  end
end

-- Put a portion of the list back: what earlier runs have left there, or what failed an hour ago. Return where to go on,
-- and how many these were.
local function put_failed_back(cursor, run)
  local portion, some = call('HSCAN', failed, cursor, 'COUNT', MOVED), 0
  for i = 1, #portion[2], 2 do
    local key, value = portion[2][i], portion[2][i + 1]
    local its_run, given_up, date = struct.unpack('>IBd', value)
    if given_up == 0 and (run and its_run < run or not run and date <= now - HOUR) then
      local head = unlist(key, value)
      if head then
        enqueue(head)
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
  local _, _, head = read_taken(value)
  local deaths = math.min(255, head:byte(-1) + new)
  if new > 0 and deaths >= most then
    fail(head, reason, deaths)
    return 'failed'
  end
  if new == 0 then free_turn(value) end
  enqueue(with_deaths(head, deaths))
  return 'queue'
end
