-- Which requests a call takes, and when they are to be sent. It is prepended to call.lua, after _workers.lua.

-- Return what a slot has without a pace of its own: of the default delays that workers want, the longest counts.
local function default_pace(delay, jitter, longest)
  delay = math.max(delay, tonumber(longest or 0))
  return {delay = delay, jitter = jitter, text = string.format('%.3f %.3f 0 ', delay, jitter)}
end

-- Return delay and jitter of a slot, and as they stand in `taken`. `text` is as in `delays`.
local function read_pace(text, default)
  if not text then return default.delay, default.jitter, default.text end
  local delay, jitter = read_numbers(text)
  return delay, jitter, text .. ' 1 '
end

-- Store the paces of slots that a worker sends, and move their next turns accordingly.
local function set_paces(sent, default)
  for _, pace in ipairs(sent.paces) do
    local slot, delay, jitter = unpack(pace)
    local turn, key = turn_of(slot)
    local before = read_pace(call('HGET', delays, slot), default)
    if not turn or delay == sent.delay and jitter == sent.jitter then  -- nothing would remove it without a turn
      call('HDEL', delays, slot)
    else
      call('HSET', delays, slot, string.format('%.3f %.3f', delay, jitter))
    end
    if turn and turn > clock then set_turn(key, slot, turn + (delay - before) * SECOND) end
  end
end

local function draw(delay, jitter) return SECOND * delay * (1 + jitter * (2 * math.random() - 1)) end

local function describe_turn(start, following, pace) return string.format('%d %d ', start, following) .. pace end

-- Hand out a request; return whether it did, nil if only this one must wait. A risky request is all that a worker has, so
-- that none is given up because of another.
local function hand_out(haul, head, turn)
  local dangerous = head:byte(-1) >= haul.most - 1
  if haul.risky then return false end
  if dangerous and not (haul.alone and #haul.ids == 0) then return nil end
  local size = struct.unpack('>I', head, #head - 4)
  if haul.room < size and #haul.ids > 0 then
    haul.room = -1
    return false
  end
  haul.risky = dangerous
  haul.ids[#haul.ids + 1], haul.rows[#haul.rows + 1] = id_of(head), turn .. head
  haul.room = haul.room - size
  return true
end

-- Hand out up to `most` requests of a slot. Return how many these were, and whether the slot has others. Risky ones block
-- nothing: they wait for a worker that has nothing.
local function hand_out_from(haul, slot, most, turn)
  local prefix, passed, gone, handed = struct.pack('>H', #slot) .. slot, haul.passed, haul.gone, 0
  for _ = 1, PORTION do
    local skip, wanted = passed[slot] or 0, most - handed + 1
    local heads = call('ZRANGEBYLEX', queue, '[' .. prefix, '(' .. prefix .. '\255', 'LIMIT', skip, wanted)
    for i, head in ipairs(heads) do
      local done = handed < most and hand_out(haul, head, turn)
      if done == false then return handed, true end
      if done then gone[#gone + 1], handed = head, handed + 1 else haul.passed_over[slot] = true end
      passed[slot] = skip + i
    end
    if #heads < wanted then return handed, haul.passed_over[slot] end
  end
  return handed, true
end

-- Serve a slot: take up to `most` of its requests with one start, and set its next turn. Return how many were taken.
local function serve(haul, slot, turn, listed, most)
  local delay, jitter, pace = read_pace(listed, haul.default)
  local start = math.max(delay > 0 and haul.soonest or clock, turn)
  local following = start + draw(delay, jitter)
  if delay > 0 then
    most, following = 1, following + haul.slack
  else
    following = clock + #haul.ids + 1  -- slots without a delay take turns
  end
  local handed, others = hand_out_from(haul, slot, most, describe_turn(start, following, pace))
  if others then
    if handed == 0 then following = haul.horizon + 1 end  -- they are for another worker, or the next call
    local later_turns = haul.turns
    following = math.max(following, paused_until(slot))
    later_turns[#later_turns + 1], later_turns[#later_turns + 2] = format_time(following), slot
  else
    call('ZREM', turns, slot)
    if handed > 0 and delay > 0 then
      call('ZADD', frees, format_time(following), slot)
      haul.freed = haul.freed + 1
    elseif listed and not call('ZSCORE', frees, slot) then
      call('HDEL', delays, slot)
    end
  end
  return handed
end

-- Return slots whose turns have come, their turns, and whether the worker has enough of them: such slots come last.
local function due(horizon, most, is_busy)
  local slots, busy_slots, times = {}, {}, {}
  local reply = call('ZRANGEBYSCORE', turns, '-inf', format_time(horizon), 'WITHSCORES', 'LIMIT', '0', most)
  for i = 1, #reply, 2 do
    local group = is_busy[reply[i]] and busy_slots or slots
    group[#group + 1], times[reply[i]] = reply[i], tonumber(reply[i + 1])
  end
  if #slots > 0 then return slots, times, false end
  return busy_slots, times, true
end

-- Store what a worker has taken. A request whose body has vanished is dropped here: since then the crawl has started
-- over, and its page counts as new.
local function store_taken(haul, worker)
  local ids, rows, texts, stored, total = {}, {}, {}, {}, 0
  for i, body in ipairs(call('HMGET', bodies, unpack(haul.ids))) do
    if body then
      local id, row = haul.ids[i], haul.rows[i]
      total = total + 1
      ids[total], rows[total], texts[total] = id, row, body
      stored[2 * total - 1], stored[2 * total] = worker .. id, row
    end
  end
  if total > 0 then call('HSET', taken, unpack(stored)) end
  haul.ids, haul.rows, haul.bodies = ids, rows, texts
end

-- Take as many requests as a worker asks for. Return the haul, and how long until more can be taken, as `next` of
-- call.lua says it.
local function take(sent, default)
  local left, many, horizon = sent.take, #sent.busy, clock + sent.ahead * SECOND
  local haul = {
    most = sent.most, alone = sent.alone, default = default,
    horizon = horizon,  -- of turns that come until then, requests are taken
    soonest = clock + sent.lead * SECOND,  -- before then no worker knows of a turn
    slack = sent.slack * SECOND,  -- so long it lasts
    room = sent.room,  -- for so many bytes
    ids = {}, rows = {}, bodies = {},  -- what was taken: ids, as in `taken`, bodies
    gone = {},  -- members of `queue`
    passed = {},  -- slot -> how many of its first members are among these, or wait
    passed_over = {},  -- slots of which some wait
    turns = {},  -- next turns of slots that have more requests
    freed = 0,  -- how many have none
  }
  local is_busy = {}
  for _, slot in ipairs(sent.busy) do is_busy[slot] = true end
  for _ = 1, PORTION do
    -- Lua can hand on some 8,000 values at once.
    local slots, times, all_busy = due(horizon, math.min(left + many, 7000), is_busy)
    local listed, progress = #slots > 0 and call('HMGET', delays, unpack(slots)) or {}, false
    for i, slot in ipairs(slots) do
      -- A slow host with a delay would fill the worker.
      if left > 0 and haul.room > 0 and not (all_busy and read_pace(listed[i], default) > 0) then
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
  if #haul.ids > 0 then store_taken(haul, sent.worker) end
  if haul.freed > 0 then drop_free(2 * haul.freed) end
  if left == 0 or haul.room <= 0 then return haul, 0 end
  local after = call('ZRANGEBYSCORE', turns, '(' .. format_time(horizon), '+inf', 'WITHSCORES', 'LIMIT', '0', many + 1)
  for i = 1, #after, 2 do
    if not is_busy[after[i]] then return haul, math.max(0, after[i + 1] - horizon) end
  end
  return haul, -1
end

-- Return rows of `taken`, and behind them the bodies of these requests, in the same order.
local function with_bodies(rows, texts)
  local total = #rows
  for i, body in ipairs(texts) do rows[total + i] = body end
  return rows
end

-- Return what a worker has of some requests, likewise. A body may have vanished meanwhile.
local function read_again(worker, ids)
  local rows, own, names = {}, {}, fields_of(worker, ids)
  for _, row in ipairs(#names > 0 and call('HMGET', taken, unpack(names)) or {}) do
    if row then rows[#rows + 1], own[#own + 1] = row, id_of(row) end
  end
  return with_bodies(rows, #own > 0 and call('HMGET', bodies, unpack(own)) or {})
end
