-- The requests: where each is, whose turn is next, and what to do when some have vanished.
--
-- A request has a head, which is all that moves:
--   2 bytes, the length of its download slot; the slot
--   1 byte, 0; or 1 if it counts as failed, see let_fail()
--   8 bytes, the priority, reversed; 8 bytes, its id, which also orders it
--   4 bytes, the size of its body; 1 byte, how many workers have died with it
-- What may be large lies still, in `bodies`, under its id, and is read only for the worker that takes it:
--   4 bytes, 1 + length of its fingerprint, or 0 without one; the fingerprint; what the worker has written
--
-- The head of a waiting request is a member of `queue`.
-- All scores are 0, so Redis sorts by these bytes: the requests of a slot are next to each other, in the order in
-- which they are sent.
--
-- A member of `later` is the same, and moves to `queue` when its time has come.
--
-- `turns` and `frees` hold nothing but times: if they are lost, `turns` is rebuilt, and at worst each host gets one
-- request too early. No time that is set for a slot comes before its pause is over.
--
-- All these times are in whole microseconds, which Redis and Lua read and write much faster than fractions, and by
-- `clock`, which never goes back: see read_clock().
--
-- Whoever takes a request learns its turn: when to send it. NEXT is the turn that was set after it.
local PORTION = 500
local MOVED = 50  -- requests that one call moves from `later` to `queue`, at most
local SECOND = 1000000
local clock = math.floor(now * SECOND)

local function slot_of(head) return head:sub(3, 2 + struct.unpack('>H', head)) end
local function id_of(head) return head:sub(-13, -6) end  -- also of a row of `taken`, which ends with its head
local function with_deaths(head, deaths) return head:sub(1, -2) .. string.char(deaths) end

-- Return until when a slot is paused; 0 if it is not.
local has_pauses
local function paused_until(slot)
  if has_pauses == nil then has_pauses = call('EXISTS', paused) == 1 end
  return has_pauses and tonumber(call('ZSCORE', paused, slot) or 0) or 0
end

-- Let a slot have a turn: now, or when it is free again.
local function await_turn(slot)
  local free = tonumber(call('ZSCORE', frees, slot) or clock)
  call('ZADD', turns, 'NX', format_time(math.max(free, paused_until(slot))), slot)
end

-- Set when a slot is served next, or may be.
local function set_turn(key, slot, turn)
  call('ZADD', key, format_time(math.max(turn, paused_until(slot))), slot)
end

-- Return when a slot is served next, or may be, and the key that says so.
local function turn_of(slot)
  local turn = call('ZSCORE', turns, slot)
  if turn then return tonumber(turn), turns end
  turn = call('ZSCORE', frees, slot)
  return turn and tonumber(turn), frees
end

-- Forget slots without requests that are free again, at most so many, and their paces. Whoever adds some forgets twice
-- as many, so that there are never more than may be needed.
local function drop_free(most)
  local slots = call('ZRANGEBYSCORE', frees, '-inf', format_time(clock), 'LIMIT', '0', most)
  if #slots == 0 then return end
  call('ZREM', frees, unpack(slots))
  if call('EXISTS', delays) == 0 then return end
  for _, slot in ipairs(slots) do
    if not call('ZSCORE', turns, slot) then call('HDEL', delays, slot) end
  end
end

-- Likewise forget pauses that are over.
local function drop_pauses(most)
  local slots = call('ZRANGEBYSCORE', paused, '-inf', format_time(clock), 'LIMIT', '0', most)
  if #slots > 0 then call('ZREM', paused, unpack(slots)) end
end

-- Have all workers learn again which slots are paused.
local function announce_pauses()
  local last = tonumber(call('HGET', header, 'pauses_version') or 0)
  call('HSET', header, 'pauses_version', format_time(math.max(clock, last + 1)))
end

-- Pause slots for a time: `slots` is as the `paused` of call.lua.
local function pause_slots(slots)
  local longer = false
  for _, pause in ipairs(slots) do
    local slot, seconds = unpack(pause)
    has_pauses = true
    local over_at = clock + seconds * SECOND
    if over_at > paused_until(slot) then
      call('ZADD', paused, format_time(over_at), slot)
      longer = true
    end
    local turn, key = turn_of(slot)
    if turn then set_turn(key, slot, turn) end
  end
  if longer then announce_pauses() end
  if #slots > 0 then drop_pauses(math.min(2 * #slots, PORTION)) end
end

local function enqueue(head)
  call('ZADD', queue, '0', head)
  await_turn(slot_of(head))
end

-- Move a portion of the requests whose time has come. Return when the next one's time comes; nil if none waits.
local function move_due()
  for moved = 0, MOVED do
    local member, due = unpack(call('ZRANGEBYSCORE', later, '-inf', '+inf', 'WITHSCORES', 'LIMIT', '0', '1'))
    if not member or moved == MOVED or tonumber(due) > clock then return tonumber(due) end
    call('ZREM', later, member)
    enqueue(member)
  end
end

-- Whether nothing may be sent: all that waits does so for a time, or in slots that are paused.
local function is_idle()
  if call('ZCARD', queue) == 0 then return true end
  local slots = call('ZRANGEBYSCORE', turns, '-inf', '+inf', 'LIMIT', '0', PORTION)
  if #slots == 0 or #slots == PORTION then return false end  -- of so many some may be sent
  for _, slot in ipairs(slots) do
    if paused_until(slot) <= clock then return false end
  end
  return true
end

-- Rebuild `turns`, a portion with each call.
local function walk()
  local slot = call('HGET', header, 'walk')
  if call('EXISTS', turns) < call('EXISTS', queue) then slot = '' end  -- also if they are lost once more
  if not slot then return end
  local from = slot == '' and '-' or '(' .. struct.pack('>H', #slot) .. slot .. '\255'
  for _ = 1, PORTION do
    local member = call('ZRANGEBYLEX', queue, from, '+', 'LIMIT', '0', '1')[1]
    if not member then
      call('HDEL', header, 'walk')
      return
    end
    slot = slot_of(member)
    await_turn(slot)
    from = '(' .. member:sub(1, 2 + #slot) .. '\255'
  end
  call('HSET', header, 'walk', slot)
end

-- Return when a taken request is to be sent, the turn after it, and its head.
local function read_taken(value)
  local start, following, head = value:match('^(%S+) (%S+) %S+ %S+ %S+ (.*)$')
  return tonumber(start), tonumber(following), head
end

-- Return the fields of a worker's requests in `taken`, and the ids, which are their fields in `bodies`.
local function fields_of(worker, ids)
  local names, own = {}, {}
  for i = 1, #ids / 8 do
    local id = ids:sub(8 * i - 7, 8 * i)
    names[i], own[i] = worker .. id, id
  end
  return names, own
end

-- Remove requests that a worker has taken. Return how many of them it had: if it was taken for dead, others may have the
-- rest, and their bodies.
local function remove(worker, ids)
  local had = 0
  for at = 1, #ids, 8 do
    local id = ids:sub(at, at + 7)
    if call('HDEL', taken, worker .. id) == 1 then
      call('HDEL', bodies, id)
      had = had + 1
    end
  end
  return had
end

-- Give back the turn of a taken request, unless a later one has been set.
local function free_turn(value)
  local start, following, head = read_taken(value)
  local slot = slot_of(head)
  local turn, key = turn_of(slot)
  if turn == following then set_turn(key, slot, start) end
end

-- Give back the turns of requests that a worker has taken, by their ids.
local function free_turns(worker, ids)
  for _, field in ipairs(fields_of(worker, ids)) do
    local value = call('HGET', taken, field)
    if value then free_turn(value) end
  end
end

-- Start over if requests have vanished, or pages from a list of forgotten ones: nothing may suppress these pages.
-- Return whether it did. A script that may count requests does this first: count() takes what is there for all. Also
-- continue rebuilding `turns`.
local function start_over_if_vanished(slices)
  local waiting, in_flight, failures, unparsed_count, stored =
    unpack(call('HMGET', header, 'waiting', 'taken', 'failed', 'unparsed', 'bodies'))
  local has_vanished = call('ZCARD', queue) + call('ZCARD', later) < tonumber(waiting)
    or call('HLEN', taken) < tonumber(in_flight) or call('HLEN', failed) < tonumber(failures)
    or call('HLEN', unparsed) < tonumber(unparsed_count) or call('HLEN', bodies) < tonumber(stored)
    or again_vanished(slices)
  if has_vanished then start_over() end
  walk()
  return has_vanished
end
