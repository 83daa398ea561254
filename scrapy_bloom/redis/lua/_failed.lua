-- What no callback got, in two lists, and what becomes of the pages. It is prepended to the scripts about requests, after
-- _queue.lua.
--
-- A row of `failed`, which is fetched again, or of `unparsed`, which stays until somebody says what to do with it:
--   2 bytes, a length; so many bytes: what it counts as in `reasons`, or in `decisions`
--   4 bytes, a length; so many bytes of JSON: kind, message, date, tries, worker, whether it is unparsed, marks of where
--   its redirects led; the head of the request
local HOUR, MOST_KINDS, MOST_STARTS = 3600 * SECOND, 100, 100000
local COUNTS = {[failed] = reasons, [unparsed] = decisions}
local counters = {done = 0, not_kept = 0}  -- of the header; whoever changes them reads and writes them

-- Change a count in a hash; return what was counted there: kinds beyond the first ones are "others".
local function tally(key, kind, by)
  local before = call('HGET', key, kind)
  if not before and by > 0 and call('HLEN', key) >= MOST_KINDS then
    kind = 'others'
    before = call('HGET', key, kind)
  end
  local after = tonumber(before or 0) + by
  if after > 0 then call('HSET', key, kind, format_time(after)) else call('HDEL', key, kind) end
  return kind
end

-- Take a row from a list; return the head that it has, nil if it is not there.
local function unlist(place, key, value)
  if not value or call('HDEL', place, key) == 0 then return nil end
  local kind, at = struct.unpack('>Hc0', value)
  tally(COUNTS[place], kind, -1)
  if place == failed then call('ZREM', dates, key) end
  local length, from = struct.unpack('>I', value, at)
  return value:sub(from + length)
end

-- Likewise, from whichever list it is on.
local function find(key)
  return unlist(failed, key, call('HGET', failed, key)) or unlist(unparsed, key, call('HGET', unparsed, key))
end

local function list(place, key, kind, packed)
  kind = tally(COUNTS[place], kind, 1)
  call('HSET', place, key, struct.pack('>Hc0', #kind, kind) .. packed)
  if place == failed then
    local began = tonumber(call('HGET', header, 'began') or 0)
    call('ZADD', dates, format_time(math.max(clock, began + 1)), key)  -- it fails in this run, also at its beginning
  end
end

-- List a request that no worker has told about, after so many deaths. One that workers died with is unparsed: it stays
-- until it is put back by hand. What nobody can read is tried again by the next run.
local function fail(head, reason, deaths)
  local place = deaths > 0 and unparsed or failed
  local why = string.format('["%s", "", %.3f, %d, "", %s, []]', reason, now, deaths, tostring(deaths > 0))
  list(place, id_of(head), reason, struct.pack('>I', #why) .. why .. with_deaths(head, 0))
end

-- Drop the body of a request, if one is given, that was taken from the list and goes nowhere.
local function drop_body(head)
  if head then call('HDEL', bodies, id_of(head)) end
end

-- Forget how a start request has ended: it comes again. Return its head if it is on a list.
local function reopen(start)
  if call('HDEL', starts, start) == 1 then counters.done = math.max(0, counters.done - 1) end
  return find(start)
end

-- Count pages that are done: once, if that is of a start request.
local function note_done(start, some)
  if some == 0 then return end
  if start ~= '' then
    drop_body(reopen(start))
    if call('HLEN', starts) < MOST_STARTS then call('HSET', starts, start, 'd') end
  end
  counters.done = counters.done + (start == '' and some or 1)
end

-- List requests that no callback got; beyond so many that are unparsed, further ones are only counted. All is said as
-- call.lua is told.
local function note_failed(worker, failures, most_unparsed)
  for _, each in ipairs(failures) do
    local id, key, is_unparsed, kind, packed, body = unpack(each)
    if call('HDEL', taken, worker .. id) == 1 then
      if key ~= '' then drop_body(reopen(key)) end
      if is_unparsed and call('HLEN', unparsed) >= most_unparsed then
        counters.not_kept = counters.not_kept + 1
        call('HDEL', bodies, id)
      else
        call('HSET', bodies, id, body)
        list(is_unparsed and unparsed or failed, key == '' and id or key, kind, packed)
      end
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

-- Put requests of the lists back into the queue, or count them as done: `restored` is as call.lua is told.
local function restore(restored)
  for _, each in ipairs(restored) do
    local key, head, body = unpack(each)
    local before = find(key)
    if before and head ~= '' then
      call('HSET', bodies, id_of(head), body)
      enqueue(head)
    elseif before then
      drop_body(before)
      note_done(#key == 16 and key or '', 1)
    end
  end
end

-- Whether requests were listed as failed up to a date.
local function has_failed(date) return #call('ZRANGEBYSCORE', dates, '-inf', date, 'LIMIT', '0', '1') > 0 end

-- Put back a portion of these. Return how many they were.
local function put_failed_back(date)
  local keys = call('ZRANGEBYSCORE', dates, '-inf', date, 'LIMIT', '0', MOVED)
  for _, key in ipairs(keys) do
    local head = unlist(failed, key, call('HGET', failed, key))
    if head then enqueue(head) else call('ZREM', dates, key) end
  end
  return #keys
end

-- Put a taken request back in its place, or among the unparsed once `most` workers have died with it, of which `new` are
-- counted now, the last for this reason. Return where it went; nil if it is not taken.
local function put_back(field, new, most, reason)
  local value = call('HGET', taken, field)
  if not value then return nil end
  call('HDEL', taken, field)
  local _, _, head = read_taken(value)
  local deaths = math.min(255, head:byte(-1) + new)
  if new > 0 and deaths >= most then
    fail(head, reason, deaths)
    return 'given_up'
  end
  enqueue(with_deaths(head, deaths))
  return 'queue'
end
