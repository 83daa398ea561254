-- Everything that a worker sends, in one call: marks, requests, what it wants, what is done. It takes effect
-- as a whole or not at all, and a call repeated with its number gets the same answer.
--
-- ARGV, in this order:
--   epoch, worker  who calls
--   numbers     thirteen: of this call; of the last call whose answer the worker has, 0 if it only has a record,
--               -1 if it need not have one; seconds of the lease; how many requests to take; how many bytes
--               of them, after the first; 1 if its start() is through, else 0; the tries after which a request is
--               moved to the failed list; after which it is risky; 1 if the worker has a risky one, else 0; its
--               delay and jitter for slots that have no other; seconds before its turn that a request may be taken;
--               1 if it has just come, else 0
--   ops         one for each entry. "m": mark. "f": mark, and queue if it is new. "p": queue; the entry has
--               no probe. "x": forget
--   probes      of the entries
--   max_ages    ITEM:SECONDS of each item with a maximum age. Items are the entries with probes, from 1
--   heard       the number that came with the last `held`; 0 if the worker has none
--   ended       what has become of pages, in groups: a letter, "d" done, "r" redirected to a seen page, "n" something
--               else stands for it; 2 bytes length, a status to count; 1 byte length, the 16 bytes of a start
--               request; 2 bytes, how many there are that have no id; 4 bytes length, ids
--   lost        requests that have failed: 8 bytes id; 1 byte length, what to list it under; 1 byte, 1 if it is
--               given up; 2 bytes length, the kind to count; 4 bytes length, the rest of the row in `failed`
--   ways        probes of where redirects of these have led, to be forgotten
--   restored    of `failed`: 1 byte length, its key; 4 bytes length, the member to put back; without one, it is done
--   start       of each start request that may have come before: 2 bytes, its entry, from 1; 16 bytes
--   back        ids of requests to put back
--   unreadable  ids of requests that this worker could not read: they are for those that have not tried
--   unused      ids of requests whose turns were not used, the latest first; they may have ended, too
--   paces       of slots: 2 bytes length, slot, two doubles: delay and jitter
--   busy        slots of which this worker has enough: 2 bytes length, slot
--   waits       ENTRY:SECONDS of each entry whose request may not be sent yet, entries from 1
--   holds       slots to be left alone: 2 bytes length, slot, a double: for how many seconds
--   then for each entry "f" and "p" two parts of the member: up to the priority, and after the tries
--
-- Answers {"ok", report, digits, held, slices, request...}: a digit for each item, 1 if it was there; unless
--            that has not changed since `heard`, a double, the number to be given there, and slots that are left alone,
--            as in `holds`, at most 500; and what was taken.
--            Report: WAITING TAKEN FAILED FORGOTTEN; how many requests are in `later`; the header's `crowd`; SECONDS
--            until the next marks expire; NOW; how long until more can be taken, 0 if perhaps now, negative if there is
--            nothing; how many requests of dead workers this call has put back, and how many of them went to the failed
--            list; DONE REDIRECTED; 1 if failed requests are to be put back before the crawl is over, else 0; and how
--            many were, if this call has put back the last one. Each request as in `taken`. NOW and how long in microseconds
--     or  {"slices", slices, kind}  upkeep.lua must first make keys of a slice, see grow()
--     or  {"dead"}     the worker missed its lease; what it had is back in the queue
--     or  {"lost"}          the server does not know its earlier calls: it went back in time
--     or  {"gone"}          there is another epoch        {"deleted"}  the user has deleted it
--     or  {"broken", error} the call failed half-way; all marks were dropped
local epoch, worker, numbers, ops, probes, max_ages, heard = unpack(ARGV, 1, 7)
local ended, lost, ways, restored, start, back, unreadable, unused = unpack(ARGV, 8, 15)
local paces, busy, waits, held = unpack(ARGV, 16, 19)
local FIRST_QUEUED = 20  -- where in ARGV the requests to queue begin
local fields = call('HMGET', header, 'epoch', 'w:' .. worker, 'slices', 'window', 'forgotten', 'order', 'seq',
  'deleted', 'delay', 'well', 'crowd', 'done', 'redirected', 'again', 'found')
if fields[1] ~= epoch then return other_epoch(epoch, fields[8]) end
local number, answered, lease, want, room, through, most, risk, risky, own_delay, own_jitter, ahead,
  comes = read_numbers(numbers)
local surprise, last = surprise_of(fields[2], number, answered)
if surprise then return {surprise} end

local digits, ids, text = '', '', fields[3]
local counts, handed_out  -- known if this call has just been carried out
read_marks(fields[3], epoch, fields[4], fields[5])
local next_turn, queued, failed_now, fetched_again = 0, 0, 0, 0
counters.done, counters.redirected = tonumber(fields[12] or 0), tonumber(fields[13] or 0)
local again, found = fields[14], fields[15]

-- Return the fields of this worker's requests in `taken`.
local function fields_of(ids)
  local names = {}
  for at = 1, #ids, 8 do names[#names + 1] = worker .. ids:sub(at, at + 7) end
  return names
end

local function read_handed_out()
  local values = {}
  for _, value in ipairs(#ids > 0 and call('HMGET', taken, unpack(fields_of(ids))) or {}) do
    if value then values[#values + 1] = value end
  end
  return values
end

local function answer()
  local report = table.concat(counts or call('HMGET', header, 'waiting', 'taken', 'failed'), ' ')
  report = format('%s %d %d %s %s %d %d %d %d %d %d %d %d', report, forgotten, call('ZCARD', later),
    fields[11] or '0 0 0', seconds_left(), clock, next_turn, queued, failed_now, counters.done, counters.redirected,
    (again or found and call('EXISTS', failed) == 1) and 1 or 0, fetched_again)
  local left_alone, told = {}, call('HGET', header, 'held') or '0'
  if told ~= heard then
    left_alone[1] = struct.pack('>d', told)
    local rows = call('ZRANGEBYSCORE', holds, format_time(clock), '+inf', 'WITHSCORES', 'LIMIT', '0', PORTION)
    for i = 1, #rows, 2 do
      left_alone[#left_alone + 1] = struct.pack('>Hc0d', #rows[i], rows[i], (rows[i + 1] - clock) / SECOND)
    end
  end
  return {'ok', report, digits, table.concat(left_alone), text, unpack(handed_out or read_handed_out())}
end
local well, heard_since = read_clock(fields[10], lease)
if number == last then
  digits, ids = call('HGET', header, 'a:' .. worker):match('^(%d*) (.*)$')
  write_worker(worker, number, now + lease, own_delay, well)
  return answer()
end
if start_over_if_vanished(slices) then return {'gone'} end

if #probes > 0 then
  local kind = grow(epoch)
  if kind then return {'slices', fields[3], kind} end
end

local function push()
  local seq = math.max(fields[7] + 1, math.floor(now * 1000000))
  local times, pushes, heads, item, argument, some = {}, {}, {}, 0, FIRST_QUEUED, false
  local before = {}
  for at = 1, #start, 18 do
    local entry, name = struct.unpack('>Hc16', start, at)
    before[entry] = reopen(name)
  end
  for entry, seconds in waits:gmatch('(%d+):(%S+)') do
    times[tonumber(entry)] = format_time(clock + seconds * SECOND)
  end
  for entry = 1, #ops do
    local op = ops:sub(entry, entry)
    if op ~= 'p' then item = item + 1 end
    if op == 'p' or op == 'f' then
      if op == 'p' or digits:sub(item, item) == '0' then
        local place = fields[6] == 'lifo' and 9007199254740992 - seq - entry or seq + entry
        local head = ARGV[argument]
        local member = before[entry]  -- its failures count on
        if member then
          head = member
        else
          member = head .. struct.pack('>I8B', place, 0) .. ARGV[argument + 1]
        end
        some = true
        if times[entry] then
          call('ZADD', later, times[entry], member)
        else
          pushes[#pushes + 1], pushes[#pushes + 2] = '0', member
          heads[head] = true
        end
      end
      argument = argument + 2
    end
  end
  if #pushes > 0 then call('ZADD', queue, unpack(pushes)) end
  for head in pairs(heads) do await_turn(slot_of(head)) end
  if some then call('HSET', header, 'seq', string.format('%.0f', seq + #ops)) end
end

-- Put back what earlier runs have left on the failed list, behind all others.
local FEW = 100  -- as long as more requests wait, none
local function fetch_again()
  if not again or through == 0 or call('ZCARD', queue) >= FEW then return end
  local cursor, before = again:match('^(%d+) (%d+)$')
  local following, some = put_failed_back(cursor, tonumber(call('HGET', header, 'run')))
  some = some + before
  if following == '0' then
    call('HDEL', header, 'again')
    again, fetched_again = nil, some
  else
    again = following .. string.format(' %d', some)
    call('HSET', header, 'again', again)
  end
end

-- Note what has become of pages.
local function settle()
  local at = 1
  while at <= #ended do
    local kind, status, start, some, these
    kind, status, start, some, these, at = struct.unpack('>c1Hc0Bc0HIc0', ended, at)
    for i = 1, #these, 8 * PORTION do
      some = some + call('HDEL', taken, unpack(fields_of(these:sub(i, i + 8 * PORTION - 1))))
    end
    note_ended(kind, status, start, some)
  end
  at = 1
  while at <= #lost do
    local id, key, given_up, kind, packed
    id, key, given_up, kind, packed, at = struct.unpack('>c8Bc0BHc0Ic0', lost, at)
    if call('HDEL', taken, worker .. id) == 1 then
      if key ~= '' then reopen(key) end
      list(key == '' and id or key, given_up, kind, packed)
    end
  end
  if #ways > 0 then judge(string.rep('x', #ways / PROBE_BYTES), ways, '') end
  at = 1
  while at <= #restored do
    local key, member
    key, member, at = struct.unpack('>Bc0Ic0', restored, at)
    if unlist(key, call('HGET', failed, key)) then
      if member ~= '' then enqueue(member) else note_ended('d', '', #key == 16 and key or '', 1) end
    end
  end
end

-- Return delay and jitter of a slot, and as they stand in `taken`. Of the default ones that workers want, the longest
-- delay counts.
local default_delay = math.max(own_delay, tonumber(fields[9] or 0))
local default_pace = string.format('%.3f %.3f 0 ', default_delay, own_jitter)
local function read_pace(text)
  if not text then return default_delay, own_jitter, default_pace end
  local delay, jitter = read_numbers(text)
  return delay, jitter, text .. ' 1 '
end

-- Note the paces of slots, and move their next turns accordingly.
local function set_paces()
  local at = 1
  while at <= #paces do
    local slot, delay, jitter
    slot, delay, jitter, at = struct.unpack('>Hc0dd', paces, at)
    local turn, key = turn_of(slot)
    local before = read_pace(call('HGET', delays, slot))
    if not turn or delay == own_delay and jitter == own_jitter then  -- nothing would remove it without a turn
      call('HDEL', delays, slot)
    else
      call('HSET', delays, slot, string.format('%.3f %.3f', delay, jitter))
    end
    if turn and turn > clock then set_turn(key, slot, turn + (delay - before) * SECOND) end
  end
end

-- Keep requests that this worker could not read for those that have not tried.
local function refuse()
  for _, field in ipairs(fields_of(unreadable)) do
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
  return string.format('%d %d ', start, following) .. pace .. (tried or '-') .. ' '
end

local names, values, gone, passed, room_left, next_turns, freed = {}, {}, {}, {}, room, {}, 0
local horizon = clock + ahead * SECOND  -- of turns that come until then, requests are taken

-- Hand out a request; return whether it did. A worker has one risky request at a time, so that none is moved to the
-- failed list because of another.
local function hand_out(member, slot, turn)
  local at = 20 + #slot  -- the number of its tries
  local dangerous = member:byte(at) >= risk
  if dangerous and risky == 1 then return false end
  if room_left < #member and #names > 0 then
    room_left = -1
    return false
  end
  if dangerous then risky = 1 end
  local id, value = member:sub(at - 8, at - 1), turn .. member
  names[#names + 1], handed_out[#handed_out + 1] = id, value
  values[#values + 1], values[#values + 2] = worker .. id, value
  room_left = room_left - #member
  return true
end

-- Read up to `room` requests of a slot into `taken`. Return how many were taken, and whether the slot has others.
local function read_requests(slot, room, turn)
  local prefix, skip = struct.pack('>H', #slot) .. slot, passed[slot] or 0
  local members = call('ZRANGEBYLEX', queue, '[' .. prefix, '(' .. prefix .. '\255', 'LIMIT', skip, room + 1)
  for i = 1, math.min(room, #members) do
    if not hand_out(members[i], slot, turn) then return i - 1, true end
    gone[#gone + 1], passed[slot] = members[i], skip + i
  end
  return math.min(room, #members), #members > room
end

-- Serve a slot: take up to `room` of its requests with one start, and set its next turn. Return how many were taken.
local function serve(slot, turn, listed, room)
  local delay, jitter, pace = read_pace(listed)
  local start = math.max(clock, turn)
  local following = start + draw(delay, jitter)
  if delay > 0 then room = 1 else following = clock + #names + 1 end  -- slots without a delay take turns
  local some, others = read_requests(slot, room, describe_turn(start, following, pace))
  if others then
    if some == 0 then following = horizon + 1 end  -- they are for another worker, or the next call
    next_turns[#next_turns + 1], next_turns[#next_turns + 2] = format_time(math.max(following, hold_of(slot))), slot
  else
    call('ZREM', turns, slot)
    if some > 0 and delay > 0 then
      call('ZADD', frees, format_time(following), slot)
      freed = freed + 1
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
local function take_unread(most, is_busy)
  local some, at, soonest = 0, '-', nil
  for _ = 1, PORTION do
    local entry = call('ZRANGEBYLEX', unread, at, '+', 'LIMIT', '0', '1')[1]
    if not entry then return some, soonest end
    if some == most or room_left <= 0 then break end
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
        if hand_out(member, slot, describe_turn(start, following, pace, tried)) then
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

local function take()
  local is_busy, many, left, at = {}, 0, want, 1
  local some, more_at = 0, nil
  handed_out = {}
  while at <= #busy do
    local slot
    slot, at = struct.unpack('>Hc0', busy, at)
    is_busy[slot], many = true, many + 1
  end
  if some_unread then some, more_at = take_unread(math.ceil(left / 2), is_busy) end
  left = left - some
  for _ = 1, PORTION do
    local slots, times, all_busy = due(left + many, is_busy)
    local listed, progress = paces_of(slots), false
    for i, slot in ipairs(slots) do
      -- A slow host with a delay would fill the worker.
      if left > 0 and room_left > 0 and not (all_busy and read_pace(listed[i]) > 0) then
        left = left - serve(slot, times[slot], listed[i], math.max(1, math.floor(left / #slots)))
        progress = true
      end
    end
    if #next_turns > 0 then
      call('ZADD', turns, unpack(next_turns))
      next_turns = {}
    end
    if left == 0 or room_left <= 0 or not progress then break end
  end
  if #gone > 0 then call('ZREM', queue, unpack(gone)) end
  if #values > 0 then call('HSET', taken, unpack(values)) end
  if freed > 0 then drop_free(2 * freed) end
  ids = table.concat(names)
  if left == 0 or room_left <= 0 then return end
  next_turn = -1
  local after = call('ZRANGEBYSCORE', turns, '(' .. format_time(horizon), '+inf', 'WITHSCORES', 'LIMIT', '0', many + 1)
  for i = #after - 1, 1, -2 do
    if not is_busy[after[i]] then next_turn = math.max(0, after[i + 1] - horizon) end
  end
  if more_at then
    local wait = math.max(0, more_at - horizon)
    next_turn = next_turn < 0 and wait or math.min(next_turn, wait)
  end
end

local function carry_out()
  local marking = #probes > 0 or #ways > 0 and #slices > 0
  if #over > 0 and marking then drop(over) end
  if comes == 1 then come(worker, lease) end
  set_holds(held)
  for _, field in ipairs(fields_of(unused)) do
    local value = call('HGET', taken, field)
    if value then free_turn(value) end
  end
  settle()
  for _, field in ipairs(fields_of(back)) do put_back(field, 0, most) end
  refuse()
  digits = judge(ops, probes, max_ages)
  push()
  set_paces()
  if heard_since then queued, failed_now = sweep(heard_since, lease, most) end
  if heard_since or comes == 1 then again, found = unpack(call('HMGET', header, 'again', 'found')) end
  fetch_again()
  local due_next = move_due()
  if want > 0 then
    take()
    if due_next and next_turn ~= 0 then
      local wait = math.max(0, due_next - clock)
      next_turn = next_turn < 0 and wait or math.min(next_turn, wait)
    end
  end
  if marking then
    text = write_slices(slices)
    call('HSET', header, 'slices', text, 'forgotten', string.format('%.0f', forgotten))
  end
  if own_delay > tonumber(fields[9] or 0) then call('HSET', header, 'delay', string.format('%.3f', own_delay)) end
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
