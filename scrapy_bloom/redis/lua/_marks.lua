-- Marking and forgetting. It is prepended to the scripts that do so, after _bits.lua.
--
--   slices, over, newest  what read_marks() has read: the slices that count, those that have expired, and the
--                         one that new marks go to
--   forgotten             counts the pages that were forgotten
--   grow(epoch)           adds the slice that is needed. Returns its kind if that has not all its keys yet: "due" if
--                         it begins a generation, "full" if the newest one is, "new" if it is the newest one
--   judge(ops, probes, ages)
--                         marks or forgets the items; returns a digit for each, 1 if it was there
--   as_a_whole(carry_out, answer)
--                         carries out a call, and returns its answer
local slices, over, newest, window, forgotten

local function read_marks(text, epoch, seconds, pages)
  window, forgotten = tonumber(seconds), tonumber(pages)
  slices, over = divide(read_slices(text, epoch), window)
  newest = slices[#slices] or over[#over]
end

-- Seconds until the next marks expire.
local function seconds_left()
  if window == 0 then return '1e9' end
  return format('%.3f', (slices[1] or newest).since + window * 9 / 8 - now)
end

local function grow(epoch)
  local begun = newest.since + window / 8
  local kind = #slices == 0 and 'due' or window > 0 and begun <= now and 'due'
    or newest.items >= newest.capacity and 'full'
  if kind == 'due' and #slices > 0 and newest.items == 0 then
    newest.since, kind = now, false
  end
  local coming, made = read_coming(epoch)
  local more = coming and made < coming.keys
  if not kind then return more and coming.number == newest.number and 'new' or nil end
  if not coming or more or coming.number ~= newest.number + 1 then return kind end
  coming.since = kind == 'due' and now or newest.since
  newest = coming
  slices[#slices + 1] = newest
end

-- What surprises a worker whose record this is, if anything does; and the number of its last call here.
local function surprise_of(record, number, answered)
  local last, expires = read_worker(record)
  last = last or -1
  if expires == 'dead' and last >= answered then return 'dead' end
  if last < answered or number < last or expires == 'dead' then return 'lost' end
  return nil, last
end

-- Carry out a call and return its answer. One that fails half-way drops all marks.
local function as_a_whole(carry_out, answer)
  local whole, problem = pcall(carry_out)
  if whole then return answer() end
  start_over()
  return {'broken', type(problem) == 'table' and problem.err or tostring(problem)}
end

local item  -- the probe of the current one, as it is in `again` and `ages`

-- Whether the item was let through less than `age` seconds ago.
local function is_fresh(age)
  for i = #slices, 1, -1 do
    local since = call('HGET', slices[i].name .. 'ages', item)
    if since then return now - math.min(now, tonumber(since)) < age end
  end
  return false
end

local function forget()
  local there = false
  for _, slice in ipairs(slices) do
    call('HDEL', slice.name .. 'ages', item)
    if is_in(slice, item) then
      call('SADD', slice.name .. 'again', item)
      slice.again, there = slice.again + 1, true
    end
  end
  if there then forgotten = forgotten + 1 end
  return there
end

-- Mark the item; return whether it was there. One let through for its age is kept for as long as a new one,
-- so older generations do not count.
local function mark(age)
  if age then
    if is_fresh(age) then return true end
    call('HSET', newest.name .. 'ages', item, format('%.6f', now))
  end
  if #slices > 1 and is_in_any(slices, item, #slices - 1, age and newest.since) then return not age end
  local seen = put(newest, item)
  if not seen then newest.items = newest.items + 1 end
  if newest.again > 0 and call('SREM', newest.name .. 'again', item) == 1 then
    newest.again, seen = newest.again - 1, false
  end
  return seen and not age
end

local function judge(ops, probes, ages)
  local digits, at, number = {}, 1, 0
  for entry = 1, #ops do
    local op = ops:sub(entry, entry)
    if op ~= 'p' then
      number = number + 1
      item = probes:sub(at, at + PROBE_BYTES - 1)
      local there
      if op == 'x' then there = forget() else there = mark(ages[number]) end
      digits[number] = there and '1' or '0'
      at = at + PROBE_BYTES
    end
  end
  return table.concat(digits)
end
