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

-- Change a count in a hash; return the kind under which it is counted: beyond the first ones, 'others'.
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

-- Return what a row counts as, its JSON, and the head of the request.
local function read_row(value)
  local kind, at = struct.unpack('>Hc0', value)
  local why, from = struct.unpack('>Ic0', value, at)
  return kind, why, value:sub(from)
end

-- Take a row from a list; return the head that it has, nil if it is not there.
local function unlist(place, key, value)
  if not value or call('HDEL', place, key) == 0 then return nil end
  local kind, _, head = read_row(value)
  tally(COUNTS[place], kind, -1)
  if place == failed then call('ZREM', dates, key) else call('HDEL', led, key) end
  return head
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

-- List a request that no worker has reported, after so many deaths. One that workers died with is unparsed: it stays
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

-- Let an unparsed request fail, as if it had before this run. The byte behind its slot has its worker count that.
local function let_fail(key, value)
  local kind, why, head = read_row(value)
  why = why:gsub('true, %[[^%[%]]*%]%]$', 'false, []]')
  unlist(unparsed, key, value)
  local slot = head:sub(1, 2 + #slot_of(head))
  list(failed, key, kind, struct.pack('>I', #why) .. why .. slot .. '\1' .. head:sub(#slot + 2))
  call('ZADD', dates, '0', key)
end

-- Forget how a start request has ended, or where it is: it has ended again, or comes again. Then drop it if it still
-- waits although who sent it is gone. Return its head if it is on a list.
local function reopen(start, comes)
  local before = call('HGET', starts, start)
  if not before then return find(start) end
  call('HDEL', starts, start)
  if before == 'd' then counters.done = math.max(0, counters.done - 1) end
  local worker, head = before:match('^(%S+) (.+)$')
  if comes and head then
    local _, expires = read_worker(call('HGET', header, 'w:' .. worker))
    local waiting = call('ZRANGEBYLEX', queue, '[' .. head, '[' .. with_deaths(head, 255))[1] or head
    if type(expires) ~= 'number' and call('ZREM', queue, waiting) + call('ZREM', later, waiting) > 0 then
      drop_body(head)
    end
  end
  return find(start) or head and find(id_of(head))  -- no worker has reported the second
end

-- Record that a start request is done, or which worker has sent it, and its head.
local function record_start(start, what)
  if call('HLEN', starts) < MOST_STARTS then call('HSET', starts, start, what) end
end

-- Count pages that are done: once, if that is of a start request.
local function record_done(start, total)
  if total == 0 then return end
  if start ~= '' then
    drop_body(reopen(start))
    record_start(start, 'd')
  end
  counters.done = counters.done + (start == '' and total or 1)
end

-- Look again for what was redirected to seen pages, if some of these have failed up to a date. What fails in this very
-- call, as what the look itself finds, is for the next look.
local function begin_look(date)
  if #call('ZRANGEBYSCORE', failed_ways, '-inf', date, 'LIMIT', '0', '1') > 0 and not call('HGET', header, 'look') then
    call('HSET', header, 'look', '0 ' .. format_time(clock - 1))
  end
end

-- Look, a portion with each call, for what was redirected to seen pages which have failed and are not known any more:
-- that has failed, too. So have then others that were redirected where it was, which the next look finds.
--
-- `position` is that of the header; `is_known` and `forget` are given probes of a size, one or several.
local function look(position, size, is_known, forget)
  if not position then return end
  local cursor, since = position:match('^(%d+) (%d+)$')
  local portion, found = call('HSCAN', led, cursor, 'COUNT', PORTION), 0
  for i = 1, #portion[2], 2 do
    local key, way = portion[2][i], portion[2][i + 1]
    local last, value = way:sub(-size), call('HGET', unparsed, portion[2][i])
    if value and call('ZSCORE', failed_ways, last) and not is_known(last) then
      if found == MOVED then return end
      found = found + 1
      for at = 1, #way - size, size do call('ZADD', failed_ways, format_time(clock), way:sub(at, at + size - 1)) end
      forget(way)
      let_fail(key, value)
    end
  end
  if portion[1] ~= '0' then
    call('HSET', header, 'look', portion[1] .. ' ' .. since)
    return
  end
  local over = call('ZRANGEBYSCORE', failed_ways, '-inf', since, 'LIMIT', '0', PORTION)
  if #over > 0 then call('ZREM', failed_ways, unpack(over)) else call('HDEL', header, 'look') end
end

-- List requests that no callback got; beyond so many that are unparsed, further ones are only counted. All is as in
-- call.lua. Return probes that are to be forgotten.
local function record_failed(worker, failures, most_unparsed)
  local ways = {}
  for _, each in ipairs(failures) do
    local id, key, is_unparsed, kind, packed, body, probes = unpack(each)
    if call('HDEL', taken, worker .. id) == 1 then
      if key ~= '' then drop_body(reopen(key)) end
      if is_unparsed and call('HLEN', unparsed) >= most_unparsed then
        counters.not_kept = counters.not_kept + 1
        call('HDEL', bodies, id)
      else
        call('HSET', bodies, id, body)
        if key == '' then key = id end
        list(is_unparsed and unparsed or failed, key, kind, packed)
        if is_unparsed and #probes > 0 then call('HSET', led, key, table.concat(probes)) end
      end
      for i = 1, is_unparsed and 0 or #probes do
        ways[#ways + 1] = probes[i]
        call('ZADD', failed_ways, format_time(clock), probes[i])
      end
    end
  end
  return table.concat(ways)
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

-- Put a request from one of the lists back into the queue. If it is a start request it may come again.
local function requeue(key, head)
  enqueue(head)
  if #key == 16 then record_start(key, '- ' .. head) end
end

-- Put requests of the lists back into the queue, or count them as done: `restored` is as in call.lua.
local function restore(restored)
  for _, each in ipairs(restored) do
    local key, head, body = unpack(each)
    local before = find(key)
    if before and head ~= '' then
      call('HSET', bodies, id_of(head), body)
      requeue(key, head)
    elseif before then
      drop_body(before)
      record_done(#key == 16 and key or '', 1)
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
    if head then requeue(key, head) else call('ZREM', dates, key) end
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
