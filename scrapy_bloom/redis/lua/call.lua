-- Everything that a worker says, in one call: marks, requests, what it wants, what is done. It takes effect
-- as a whole or not at all, and a call repeated with its number gets the same answer.
--
-- ARGV[1]  a map in MessagePack, which redis/wire.py writes:
--   epoch, worker  who calls
--   number      of this call
--   answered    of the last call whose answer the worker has, 0 if it only has a record, -1 if it need not have one
--   lease       seconds
--   comes       whether it has just come
--   most        deaths after which a request is moved to the failed list; with one less it is risky
--   risky       whether the worker has a risky one
--   seen        how many links were dropped since its last call, because they led to seen pages
--   take, room  how many requests to take; how many bytes of them, after the first
--   through     whether its start() is through
--   ahead       seconds before its turn that a request may be taken
--   delay, jitter  its pace for slots that have no other
--   ops         a letter for each entry. "m": mark. "f": mark, and queue if it is new. "p": queue; the entry has
--               no probe. "x": forget
--   probes      of the entries
--   ages        maximum ages in seconds, by item. Items are the entries with probes, from 1
--   members     for each entry "f" and "p" two parts of the member: up to the priority, and after the deaths
--   starts      for each start request that may have come before 16 bytes, by entry, from 1
--   waits       for how many seconds a request may not be sent yet, by entry
--   holds_version  what came with the last `held`; "0" if the worker has none
--   ended       what has become of pages, in groups: {letter, status, start, count, ids}. "d" done, "r" redirected to a
--               seen page, "n" something else stands for it; a status to count; the 16 bytes of a start request, or
--               none; how many there are that have no id
--   failures    requests that have failed: {id, what to list it under, 1 if it is given up, the kind to count, the rest
--               of the row in `failed`}
--   ways        probes of where redirects of these have led, to be forgotten
--   restored    of `failed`: {key, the member to put back}; without one, it is done
--   back        ids of requests to put back
--   unreadable  ids of requests that this worker could not read: they go to the failed list
--   unused      ids of requests whose turns were not used, the latest first; they may have ended, too
--   paces       of slots: {slot, delay, jitter}
--   busy        slots of which this worker has enough
--   holds       slots to be left alone: {slot, for how many seconds}
-- Ids are of 8 bytes each, one behind the other.
--
-- Answers {"ok", report, digits, held, slices, request...}: a digit for each item, 1 if it was there; unless that has
--            not changed since `holds_version`, what to say there, and slots that are left alone, each with its
--            seconds, at most 500; and what was taken, each as in `taken`. The report has names and numbers:
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
  'crowd', 'done', 'redirected', 'seen', 'again', 'found')
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
  if told ~= said.holds_version then
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

-- Put back what earlier runs have left on the failed list, while few requests wait. Each keeps its priority, and its
-- place among those of its slot.
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
  for _, each in ipairs(said.failures) do
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

local default = default_pace(own_delay, said.jitter, there.delay)

-- Note the paces of slots, and move their next turns accordingly.
local function set_paces()
  for _, pace in ipairs(said.paces) do
    local slot, delay, jitter = unpack(pace)
    local turn, key = turn_of(slot)
    local before = read_pace(call('HGET', delays, slot), default)
    if not turn or delay == own_delay and jitter == said.jitter then  -- nothing would remove it without a turn
      call('HDEL', delays, slot)
    else
      call('HSET', delays, slot, format('%.3f %.3f', delay, jitter))
    end
    if turn and turn > clock then set_turn(key, slot, turn + (delay - before) * SECOND) end
  end
end

-- List requests that this worker could not read: the next run, or another worker in an hour, may.
local function refuse()
  for _, field in ipairs(fields_of(said.unreadable)) do
    local value = call('HGET', taken, field)
    if value then
      local _, _, member = read_taken(value)
      call('HDEL', taken, field)
      free_turn(value)
      fail(member, 'unreadable', 0)
    end
  end
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
    haul, next_turn = take(said, default)
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
    counters.redirected, 'seen', (there.seen or 0) + said.seen)}
end

-- A server that is full or read-only refuses this first write, and then nothing has changed.
write_worker(worker, number, now + lease, own_delay, well)
math.randomseed(clock % SECOND)  -- Redis begins each script with the same seed
return as_a_whole(carry_out, answer)
