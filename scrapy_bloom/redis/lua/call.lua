-- Everything that a worker sends, in one call: marks, requests, what it wants, what is done. It takes effect
-- as a whole or not at all, and a call repeated with its number gets the same answer.
--
-- ARGV, in this order:
--   epoch, worker  who calls
--   numbers     nine: of this call; of the last call whose answer the worker has, 0 if it only has a record,
--               -1 if it need not have one; seconds of the lease; how many requests to take; how many bytes
--               of them, after the first; how many failed ones to put back into the queue; the tries after
--               which a request is moved to the failed list; after which it is risky; 1 if the worker has a
--               risky one, else 0
--   letters     one for each entry. "m": mark. "f": mark, and queue if it is new. "p": queue; the entry has
--               no probe. "x": forget. Empty: all are "m"
--   probes      of the entries
--   max_ages    ITEM:SECONDS of each item with a maximum age. Items are the entries with probes, from 1
--   next_slice  the slice to add, NUMBER:KIND:GEOMETRY, after an answer "slices"; else empty
--   done        ids of requests that are done
--   back        ids of requests to put back
--   unreadable  ids of requests that this worker could not read: another may, so they go to the end of the
--               queue
--   then for each entry "f" and "p" the score, and the member without its first 9 bytes
--
-- Answers {"ok", report, digits, request...}: a digit for each item, 1 if it was there, and what was taken.
--            Report: WAITING TAKEN FAILED FORGOTTEN SECONDS until the next marks expire
--     or  {"slices", slices, kind}  a slice is to be added: "due" if it begins a generation, else "full"
--     or  {"dead", ...}     the worker missed its lease; what it had is back in the queue
--     or  {"lost"}          the server does not know its earlier calls: it went back in time
--     or  {"gone"}          there is another epoch        {"deleted"}  the user has deleted it
--     or  {"broken", error} the call failed half-way; all marks were dropped
local epoch, worker, numbers, letters, probes, max_ages, next_slice, done, back, unreadable = unpack(ARGV, 1, 10)
local FIRST_QUEUED = 11  -- where in ARGV the requests to queue begin
local found = call('HMGET', header, 'epoch', 'w:' .. worker, 'slices', 'window', 'forgotten', 'order', 'seq',
  'deleted')
if found[1] ~= epoch then return other_epoch(epoch, found[8]) end
local number, answered, lease, want, room, retry, most, risk, risky = read_numbers(numbers)
local last, lives = (found[2] or '-1 0'):match('^(-?%d+) (%S+)')
last = tonumber(last)
if lives == 'dead' and last >= answered then return {'dead'} end
if last < answered or number < last or lives == 'dead' then return {'lost'} end

local window, forgotten, digits, ids = tonumber(found[4]), tonumber(found[5]), '', ''
local slices, over = divide(read_slices(found[3], epoch), window)
local newest = slices[#slices] or over[#over]
local function answer()
  local counts = call('HMGET', header, 'waiting', 'taken', 'failed', 'forgotten')
  local oldest = slices[1] or newest
  counts[5] = window > 0 and string.format('%.3f', oldest.since + window * 9 / 8 - now) or '1e9'
  local values = {}
  for at = 1, #ids, 8 do
    values[#values + 1] = call('HGET', taken, worker .. ids:sub(at, at + 7)) or nil
  end
  return {'ok', table.concat(counts, ' '), digits, unpack(values)}
end
if number == last then
  digits, ids = call('HGET', header, 'a:' .. worker):match('^(%d*) (.*)$')
  call('HSET', header, 'w:' .. worker, string.format('%.0f %.3f', number, now + lease))
  return answer()
end
if vanished(slices) then return {'gone'} end

if #probes > 0 then
  local begun = newest.since + window / 8
  local kind = #slices == 0 and 'due' or window > 0 and begun <= now and 'due'
    or newest.items >= newest.capacity and 'full'
  if kind == 'due' and #slices > 0 and newest.items == 0 then
    newest.since, kind = now, false
  end
  if kind then
    local next_number, next_kind, geometry = next_slice:match('^(%d+):(%a+):(.*)$')
    if tonumber(next_number) ~= newest.number + 1 or next_kind ~= kind then
      return {'slices', found[3], kind}
    end
    local since = kind == 'due' and now or newest.since
    newest = read_slices(string.format('%s:%s:%.6f:0:0', geometry, next_number, since), epoch)[1]
    slices[#slices + 1] = newest
  end
end

local at = 1  -- where the probe of the current item begins
local function raw() return probes:sub(at, at + PROBE_BYTES - 1) end

local function is_in(slice)
  return has(slice) and (slice.again == 0 or call('SISMEMBER', slice.name .. 'again', raw()) == 0)
end

local function is_there(since)
  for i = #slices - 1, 1, -1 do
    if slices[i].since >= since and is_in(slices[i]) then return true end
  end
  return false
end

-- Whether the item was let through less than `age` seconds ago.
local function is_fresh(age)
  for i = #slices, 1, -1 do
    local since = call('HGET', slices[i].name .. 'ages', raw())
    if since then return now - math.min(now, tonumber(since)) < age end
  end
  return false
end

local function forget()
  local there = false
  for _, slice in ipairs(slices) do
    call('HDEL', slice.name .. 'ages', raw())
    if is_in(slice) then
      call('SADD', slice.name .. 'again', raw())
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
    call('HSET', newest.name .. 'ages', raw(), string.format('%.6f', now))
  end
  if #slices > 1 and is_there(age and newest.since or 0) then return not age end
  local seen = put(newest)
  if not seen then newest.items = newest.items + 1 end
  if newest.again > 0 and call('SREM', newest.name .. 'again', raw()) == 1 then
    newest.again, seen = newest.again - 1, false
  end
  return seen and not age
end

local ages, verdicts = {}, {}
for item, age in max_ages:gmatch('(%d+):(%S+)') do ages[tonumber(item)] = tonumber(age) end
local acts = {f = mark, m = mark, x = forget}
local function judge()
  local item, mixed = 0, letters ~= ''
  for entry = 1, mixed and #letters or #probes / PROBE_BYTES do
    local act = mark
    if mixed then act = acts[letters:sub(entry, entry)] end
    if act then
      item = item + 1
      aim(probes, at)
      verdicts[item] = act(ages[item]) and '1' or '0'
      at = at + PROBE_BYTES
    end
  end
end

local function push()
  local seq = math.max(found[7] + 1, math.floor(now * 1000000))
  local pushes, item, argument = {}, 0, FIRST_QUEUED
  for entry = 1, #letters do
    local letter = letters:sub(entry, entry)
    if letter ~= 'p' then item = item + 1 end
    if letter == 'p' or letter == 'f' then
      if letter == 'p' or verdicts[item] == '0' then
        local place = found[6] == 'lifo' and 9007199254740992 - seq - entry or seq + entry
        pushes[#pushes + 1] = ARGV[argument]
        pushes[#pushes + 1] = struct.pack('>I8B', place, 0) .. ARGV[argument + 1]
      end
      argument = argument + 2
    end
  end
  if #pushes == 0 then return end
  call('ZADD', queue, unpack(pushes))
  call('HSET', header, 'seq', string.format('%.0f', seq + #letters))
end

local function put_failed_back()
  for _, id in ipairs(call('HKEYS', failed)) do
    if retry == 0 then break end
    local score, member = call('HGET', failed, id):match('^(%S+) (.*)$')
    call('HDEL', failed, id)
    call('ZADD', queue, score, id .. '\0' .. member:sub(10))
    retry = retry - 1
  end
end

-- Take requests, as long as there is room for them, but at least one. A worker has one risky request at a time,
-- so that none is moved to the failed list because of another.
local function take()
  local names, kept = {}, {}
  local popped = call('ZPOPMIN', queue, want)
  for i = 1, #popped, 2 do
    local member, score = popped[i], popped[i + 1]
    local danger = member:byte(9) >= risk
    room = room - #member
    if danger and risky == 1 or room < 0 and #names > 0 then
      kept[#kept + 1], kept[#kept + 2] = score, member
    else
      if danger then risky = 1 end
      names[#names + 1] = member:sub(1, 8)
      call('HSET', taken, worker .. member:sub(1, 8), score .. ' ' .. member)
    end
  end
  if #kept > 0 then call('ZADD', queue, unpack(kept)) end
  ids = table.concat(names)
end

local function each(text, act)
  for i = 1, #text, 8 do act(worker .. text:sub(i, i + 7)) end
end

local function carry_out()
  if #over > 0 and #probes > 0 then drop(over) end
  each(done, function(field) call('HDEL', taken, field) end)
  each(back, function(field) put_back(field, 0, most) end)
  each(unreadable, function(field) put_back(field, 1, most, true) end)
  judge()
  digits = table.concat(verdicts)
  push()
  if retry > 0 then put_failed_back() end
  if want > 0 then take() end
  if #probes > 0 then
    call('HSET', header, 'slices', write_slices(slices), 'forgotten', string.format('%.0f', forgotten))
  end
  call('HSET', header, 'a:' .. worker, digits .. ' ' .. ids)
  count()
end

-- A server that is full or read-only refuses this first write, and then nothing has changed.
call('HSET', header, 'w:' .. worker, string.format('%.0f %.3f', number, now + lease))
local whole, problem = pcall(carry_out)
if whole then return answer() end
start_over()
return {'broken', type(problem) == 'table' and problem.err or tostring(problem)}
