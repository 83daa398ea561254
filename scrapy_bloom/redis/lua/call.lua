-- Everything that a worker says, in one call: marks, requests, what it wants, what is done. It takes effect
-- as a whole or not at all, and a call repeated with its number gets the same answer.
--
-- ARGV[1]  a map in MessagePack, which redis/wire.py writes:
--   epoch, worker  who calls
--   number      of this call
--   answered    of the last call whose answer the worker has, 0 if it only has a record, -1 if it need not have one
--   lease       seconds
--   comes       whether it has just come
--   most        tries after which a request is moved to the failed list; with one less it is risky
--   risky       whether the worker has a risky one
--   take, room  how many requests to take; how many bytes of them, after the first
--   through     whether its start() is through
--   ahead       seconds before its turn that a request may be taken
--   delay, jitter  its pace for slots that have no other
--   ops         a letter for each entry. "m": mark. "f": mark, and queue if it is new. "p": queue; the entry has
--               no probe. "x": forget
--   probes      of the entries
--   ages        maximum ages in seconds, by item. Items are the entries with probes, from 1
--   members     for each entry "f" and "p" two parts of the member: up to the priority, and after the tries
--   starts      for each start request that may have come before 16 bytes, by entry, from 1
--   waits       for how many seconds a request may not be sent yet, by entry
--   heard       what came with the last `held`; "0" if the worker has none
--   ended       what has become of pages, in groups: {letter, status, start, count, ids}. "d" done, "r" redirected to a
--               seen page, "n" something else stands for it; a status to count; the 16 bytes of a start request, or
--               none; how many there are that have no id
--   lost        requests that have failed: {id, what to list it under, 1 if it is given up, the kind to count, the rest
--               of the row in `failed`}
--   ways        probes of where redirects of these have led, to be forgotten
--   restored    of `failed`: {key, the member to put back}; without one, it is done
--   back        ids of requests to put back
--   unreadable  ids of requests that this worker could not read: they are for those that have not tried
--   unused      ids of requests whose turns were not used, the latest first; they may have ended, too
--   paces       of slots: {slot, delay, jitter}
--   busy        slots of which this worker has enough
--   holds       slots to be left alone: {slot, for how many seconds}
-- Ids are of 8 bytes each, one behind the other.
--
-- Answers {"ok", report, digits, held, slices, request...}: a digit for each item, 1 if it was there; unless that has
--            not changed since `heard`, what to say there, and slots that are left alone, each with its seconds, at
--            most 500; and what was taken, each as in `taken`. The report has names and numbers:
--              waiting, taken, failed, forgotten, done, redirected  as in the header
--              later               how many requests are in `later`
--              workers, hosts, held  see the header's `crowd`
--              expires             seconds until the next marks do
--              now, next           the time; how long until more can be taken, 0 if perhaps now, negative if there is
--                                  nothing. In microseconds
--              requeued, given_up  how many requests of dead workers this call has put back; how many have gone to the
--                                  failed list
--              more                1 if failed requests are to be put back before the crawl is over, else 0
--              fetched_again       how many were, if this call has put back the last one
--     or  {"slices", slices, kind}  upkeep.lua must first make keys of a slice, see grow()
--     or  {"dead"}     the worker missed its lease; what it had is back in the queue
--     or  {"lost"}          the server does not know its earlier calls: it went back in time
--     or  {"gone"}          there is another epoch        {"deleted"}  the user has deleted it
--     or  {"broken", error} the call failed half-way; all marks were dropped
local said = cmsgpack.unpack(ARGV[1])
local worker, number, lease, own_delay = said.worker, said.number, said.lease, said.delay
local record = 'w:' .. worker
local there = read_header('epoch', record, 'slices', 'window', 'forgotten', 'order', 'seq', 'deleted', 'delay', 'well',
  'crowd', 'done', 'redirected', 'again', 'found')
if there.epoch ~= said.epoch then return other_epoch(said.epoch, there.deleted) end
local surprise, last = surprise_of(there[record], number, said.answered)
if surprise then return {surprise} end

local digits, ids, text = '', '', there.slices
local counts, requests  -- known if this call has just been carried out
read_marks(there.slices, said.epoch, there.window, there.forgotten)
local next_turn, requeued, given_up, fetched_again = 0, 0, 0, 0
counters.done, counters.redirected = tonumber(there.done or 0), tonumber(there.redirected or 0)

-- Return the fields of this worker's requests in `taken`.
local function fields_of(ids)
  local names = {}
  for at = 1, #ids, 8 do names[#names + 1] = worker .. ids:sub(at, at + 7) end
  return names
end

local function read_requests()
  local values = {}
  for _, value in ipairs(#ids > 0 and call('HMGET', taken, unpack(fields_of(ids))) or {}) do
    if value then values[#values + 1] = value end
  end
  return values
end

local function answer()
  local waiting, in_flight, failures = unpack(counts or call('HMGET', header, 'waiting', 'taken', 'failed'))
  local workers, hosts, held = read_numbers(there.crowd or '0 0 0')
  local report = format('waiting %d taken %d failed %d forgotten %d done %d redirected %d later %d workers %d hosts %d '
    .. 'held %d expires %s now %d next %d requeued %d given_up %d more %d fetched_again %d', waiting, in_flight, failures,
    forgotten, counters.done, counters.redirected, call('ZCARD', later), workers, hosts, held, seconds_left(), clock,
    next_turn, requeued, given_up, (there.again or there.found and call('EXISTS', failed) == 1) and 1 or 0, fetched_again)
  local left_alone, told = {}, call('HGET', header, 'held') or '0'
  if told ~= said.heard then
    left_alone = call('ZRANGEBYSCORE', holds, format_time(clock), '+inf', 'WITHSCORES', 'LIMIT', '0', PORTION)
    for i = 2, #left_alone, 2 do left_alone[i] = format('%.6f', (left_alone[i] - clock) / SECOND) end
    table.insert(left_alone, 1, told)
  end
  return {'ok', report, digits, left_alone, text, unpack(requests or read_requests())}
end
local well, heard_since = read_clock(there.well, lease)
if number == last then
  digits, ids = call('HGET', header, 'a:' .. worker):match('^(%d*) (.*)$')
  write_worker(worker, number, now + lease, own_delay, well)
  return answer()
end
if start_over_if_vanished(slices) then return {'gone'} end

if #said.probes > 0 then
  local kind = grow(said.epoch)
  if kind then return {'slices', there.slices, kind} end
end

local function push()
  local seq = math.max(there.seq + 1, math.floor(now * 1000000))
  local pushes, heads, item, part, some = {}, {}, 0, 1, false
  local before = {}
  for entry, start in pairs(said.starts) do before[entry] = reopen(start) end
  local ops, members = said.ops, said.members
  for entry = 1, #ops do
    local op = ops:sub(entry, entry)
    if op ~= 'p' then item = item + 1 end
    if op == 'p' or op == 'f' then
      if op == 'p' or digits:sub(item, item) == '0' then
        local place = there.order == 'lifo' and 9007199254740992 - seq - entry or seq + entry
        local head = members[part]
        local member = before[entry]  -- its failures count on
        if member then
          head = member
        else
          member = head .. struct.pack('>I8B', place, 0) .. members[part + 1]
        end
        some = true
        if said.waits[entry] then
          call('ZADD', later, format_time(clock + said.waits[entry] * SECOND), member)
        else
          pushes[#pushes + 1], pushes[#pushes + 2] = '0', member
          heads[head] = true
        end
      end
      part = part + 2
    end
  end
  if #pushes > 0 then call('ZADD', queue, unpack(pushes)) end
  for head in pairs(heads) do await_turn(slot_of(head)) end
  if some then call('HSET', header, 'seq', format('%.0f', seq + #ops)) end
end

-- Put back what earlier runs have left on the failed list, behind all others.
local FEW = 100  -- as long as more requests wait, none
local function fetch_again()
  if not there.again or not said.through or call('ZCARD', queue) >= FEW then return end
  local cursor, before = there.again:match('^(%d+) (%d+)$')
  local following, some = put_failed_back(cursor, tonumber(call('HGET', header, 'run')))
  some = some + before
  if following == '0' then
    call('HDEL', header, 'again')
    there.again, fetched_again = nil, some
  else
    there.again = following .. format(' %d', some)
    call('HSET', header, 'again', there.again)
  end
end

-- Note what has become of pages.
local function settle()
  for _, group in ipairs(said.ended) do
    local kind, status, start, some, these = unpack(group)
    for i = 1, #these, 8 * PORTION do
      some = some + call('HDEL', taken, unpack(fields_of(these:sub(i, i + 8 * PORTION - 1))))
    end
    note_ended(kind, status, start, some)
  end
  for _, each in ipairs(said.lost) do
    local id, key, given_up, kind, packed = unpack(each)
    if call('HDEL', taken, worker .. id) == 1 then
      if key ~= '' then reopen(key) end
      list(key == '' and id or key, given_up, kind, packed)
    end
  end
  local ways = said.ways
  if #ways > 0 then judge(string.rep('x', #ways / PROBE_BYTES), ways, {}) end
  for _, each in ipairs(said.restored) do
    local key, member = unpack(each)
    if unlist(key, call('HGET', failed, key)) then
      if member ~= '' then enqueue(member) else note_ended('d', '', #key == 16 and key or '', 1) end
    end
  end
end

-- Return delay and jitter of a slot, and as they stand in `taken`. Of the default ones that workers want, the longest
-- delay counts.
local default_delay = math.max(own_delay, tonumber(there.delay or 0))
local default_pace = format('%.3f %.3f 0 ', default_delay, said.jitter)
local function read_pace(text)
  if not text then return default_delay, said.jitter, default_pace end
  local delay, jitter = read_numbers(text)
  return delay, jitter, text .. ' 1 '
end

-- Note the paces of slots, and move their next turns accordingly.
local function set_paces()
  for _, pace in ipairs(said.paces) do
    local slot, delay, jitter = unpack(pace)
    local turn, key = turn_of(slot)
    local before = read_pace(call('HGET', delays, slot))
    if not turn or delay == own_delay and jitter == said.jitter then  -- nothing would remove it without a turn
      call('HDEL', delays, slot)
    else
      call('HSET', delays, slot, format('%.3f %.3f', delay, jitter))
    end
    if turn and turn > clock then set_turn(key, slot, turn + (delay - before) * SECOND) end
  end
end

-- Keep requests that this worker could not read for those that have not tried.
local function refuse()
  for _, field in ipairs(fields_of(said.unreadable)) do
    local value = call('HGET', taken, field)
    if value then
      local _, _, member, names = read_taken(value)
      local tried = {short_name(worker)}
      for name in names:gmatch('[^,]+,') do tried[#tried + 1] = name end
      table.sort(tried)
      call('HDEL', taken, field)
      free_turn(value)
      call('ZADD', unread, '0', table.concat(tried) .. ' ' .. member)
    end
  end
end

local function draw(delay, jitter) return SECOND * delay * (1 + jitter * (2 * math.random() - 1)) end

local function describe_turn(start, following, pace, tried)
  return format('%d %d ', start, following) .. pace .. (tried or '-') .. ' '
end

local horizon = clock + said.ahead * SECOND  -- of turns that come until then, requests are taken

-- Hand out a request; return whether it did. A worker has one risky request at a time, so that none is moved to the
-- failed list because of another.
local function hand_out(haul, member, slot, turn)
  local at = 20 + #slot  -- the number of its tries
  local dangerous = member:byte(at) >= said.most - 1
  if dangerous and said.risky then return false end
  if haul.room < #member and #haul.ids > 0 then
    haul.room = -1
    return false
  end
  said.risky = said.risky or dangerous
  local id, value, stored = member:sub(at - 8, at - 1), turn .. member, haul.stored
  haul.ids[#haul.ids + 1], haul.requests[#haul.requests + 1] = id, value
  stored[#stored + 1], stored[#stored + 2] = worker .. id, value
  haul.room = haul.room - #member
  return true
end

-- Hand out up to `most` requests of a slot. Return how many these were, and whether the slot has others.
local function hand_out_some(haul, slot, most, turn)
  local prefix, skip, gone = struct.pack('>H', #slot) .. slot, haul.passed[slot] or 0, haul.gone
  local members = call('ZRANGEBYLEX', queue, '[' .. prefix, '(' .. prefix .. '\255', 'LIMIT', skip, most + 1)
  for i = 1, math.min(most, #members) do
    if not hand_out(haul, members[i], slot, turn) then return i - 1, true end
    gone[#gone + 1], haul.passed[slot] = members[i], skip + i
  end
  return math.min(most, #members), #members > most
end

-- Serve a slot: take up to `most` of its requests with one start, and set its next turn. Return how many were taken.
local function serve(haul, slot, turn, listed, most)
  local delay, jitter, pace = read_pace(listed)
  local start = math.max(clock, turn)
  local following = start + draw(delay, jitter)
  if delay > 0 then most = 1 else following = clock + #haul.ids + 1 end  -- slots without a delay take turns
  local some, others = hand_out_some(haul, slot, most, describe_turn(start, following, pace))
  if others then
    if some == 0 then following = horizon + 1 end  -- they are for another worker, or the next call
    local later_turns = haul.turns
    later_turns[#later_turns + 1], later_turns[#later_turns + 2] = format_time(math.max(following, hold_of(slot))), slot
  else
    call('ZREM', turns, slot)
    if some > 0 and delay > 0 then
      call('ZADD', frees, format_time(following), slot)
      haul.freed = haul.freed + 1
    elseif listed and not call('ZSCORE', frees, slot) then
      call('HDEL', delays, slot)
    end
  end
  return some
end

-- Return slots whose turns have come, their turns, and whether the worker has enough of them: such slots come last.
local function due(most, is_busy)
  local slots, busy_slots, times = {}, {}, {}
  local reply = call('ZRANGEBYSCORE', turns, '-inf', format_time(horizon), 'WITHSCORES', 'LIMIT', '0', most)
  for i = 1, #reply, 2 do
    local some = is_busy[reply[i]] and busy_slots or slots
    some[#some + 1], times[reply[i]] = reply[i], tonumber(reply[i + 1])
  end
  if #slots > 0 then return slots, times, false end
  return busy_slots, times, true
end

-- Return the paces of slots that have one in `delays`. Lua can hand on some 8,000 values at once.
local function paces_of(slots)
  if #slots <= PORTION then return #slots > 0 and call('HMGET', delays, unpack(slots)) or {} end
  local listed = {}
  for first = 1, #slots, PORTION do
    local some = call('HMGET', delays, unpack(slots, first, math.min(first + PORTION - 1, #slots)))
    for i = 1, #some do listed[first + i - 1] = some[i] end
  end
  return listed
end

-- Take up to `most` requests that others could not read, and this worker has not tried. Return how many these were, and
-- when there may be more: 0 if now, nil if there is nothing.
local function take_unread(haul, most, is_busy)
  local some, at, soonest = 0, '-', nil
  for _ = 1, PORTION do
    local entry = call('ZRANGEBYLEX', unread, at, '+', 'LIMIT', '0', '1')[1]
    if not entry then return some, soonest end
    if some == most or haul.room <= 0 then break end
    local tried, member = entry:match('^(%S+) (.*)$')
    if tried:find(short_name(worker), 1, true) then
      at = '(' .. tried .. ' \255'
    else
      local slot = slot_of(member)
      local turn, key = turn_of(slot)
      local delay, jitter, pace = read_pace(call('HGET', delays, slot))
      local start = math.max(clock, turn or 0, hold_of(slot))
      if start > horizon or delay > 0 and is_busy[slot] then
        if start > horizon then soonest = math.min(soonest or start, start) end
        at = '(' .. tried .. ' ' .. member:sub(1, 2 + #slot) .. '\255'
      else
        local following = start + draw(delay, jitter)
        if hand_out(haul, member, slot, describe_turn(start, following, pace, tried)) then
          call('ZREM', unread, entry)
          if delay > 0 then set_turn(key or frees, slot, following) end
          some = some + 1
        end
        at = '(' .. entry
      end
    end
  end
  return some, 0
end

-- Take up to `left` requests. Return what was taken, and how long until more can be, see `next` above.
local function take(left)
  local haul = {
    ids = {}, requests = {}, room = said.room,
    stored = {},  -- fields and values of `taken`
    gone = {},  -- members of `queue`
    passed = {},  -- slot -> how many of its first members are among these
    turns = {},  -- next turns of slots that have more requests
    freed = 0,  -- slots that have none
  }
  local is_busy, many, some, more_at = {}, #said.busy, 0, nil
  for _, slot in ipairs(said.busy) do is_busy[slot] = true end
  if some_unread then some, more_at = take_unread(haul, math.ceil(left / 2), is_busy) end
  left = left - some
  for _ = 1, PORTION do
    local slots, times, all_busy = due(left + many, is_busy)
    local listed, progress = paces_of(slots), false
    for i, slot in ipairs(slots) do
      -- A slow host with a delay would fill the worker.
      if left > 0 and haul.room > 0 and not (all_busy and read_pace(listed[i]) > 0) then
        left = left - serve(haul, slot, times[slot], listed[i], math.max(1, math.floor(left / #slots)))
        progress = true
      end
    end
    if #haul.turns > 0 then
      call('ZADD', turns, unpack(haul.turns))
      haul.turns = {}
    end
    if left == 0 or haul.room <= 0 or not progress then break end
  end
  if #haul.gone > 0 then call('ZREM', queue, unpack(haul.gone)) end
  if #haul.stored > 0 then call('HSET', taken, unpack(haul.stored)) end
  if haul.freed > 0 then drop_free(2 * haul.freed) end
  if left == 0 or haul.room <= 0 then return haul, 0 end
  local wait = more_at and math.max(0, more_at - horizon)
  local after = call('ZRANGEBYSCORE', turns, '(' .. format_time(horizon), '+inf', 'WITHSCORES', 'LIMIT', '0', many + 1)
  for i = 1, #after, 2 do
    if not is_busy[after[i]] then return haul, math.min(wait or math.huge, math.max(0, after[i + 1] - horizon)) end
  end
  return haul, wait or -1
end

local function carry_out()
  local marking = #said.probes > 0 or #said.ways > 0 and #slices > 0
  if #over > 0 and marking then drop(over) end
  if said.comes then come(worker, lease) end
  set_holds(said.holds)
  for _, field in ipairs(fields_of(said.unused)) do
    local value = call('HGET', taken, field)
    if value then free_turn(value) end
  end
  settle()
  for _, field in ipairs(fields_of(said.back)) do put_back(field, 0, said.most) end
  refuse()
  digits = judge(said.ops, said.probes, said.ages)
  push()
  set_paces()
  if heard_since then requeued, given_up = sweep(heard_since, lease, said.most) end
  if heard_since or said.comes then there.again, there.found = unpack(call('HMGET', header, 'again', 'found')) end
  fetch_again()
  local due_next = move_due()
  requests = {}
  if said.take > 0 then
    local haul
    haul, next_turn = take(said.take)
    ids, requests = table.concat(haul.ids), haul.requests
    if due_next and next_turn ~= 0 then
      local wait = math.max(0, due_next - clock)
      next_turn = next_turn < 0 and wait or math.min(next_turn, wait)
    end
  end
  if marking then
    text = write_slices(slices)
    call('HSET', header, 'slices', text, 'forgotten', format('%.0f', forgotten))
  end
  if own_delay > tonumber(there.delay or 0) then call('HSET', header, 'delay', format('%.3f', own_delay)) end
  counts = {count('a:' .. worker, digits .. ' ' .. ids, 'done', counters.done, 'redirected',
    counters.redirected)}
end

-- A server that is full or read-only refuses this first write, and then nothing has changed.
write_worker(worker, number, now + lease, own_delay, well)
math.randomseed(clock % SECOND)  -- Redis begins each script with the same seed
local whole, problem = pcall(carry_out)
if whole then return answer() end
start_over()
return {'broken', type(problem) == 'table' and problem.err or tostring(problem)}
