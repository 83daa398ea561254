-- What a worker says to a filter whose requests are kept elsewhere: marks; and what is to be pushed to scrapy-redis's
-- queue. Otherwise it is as call.lua.
--
-- KEYS[3]  that queue, if requests are to be pushed
-- ARGV[1]  a map in MessagePack: epoch, worker, number, answered, lease, ops, probes, ages. With a queue
--   type    "zset" or "list"
--   scored  for each entry its score and its request
--
-- Answers {"ok", report, digits, {}, slices}, as call.lua if there are no requests
--     or  {"slices", ...}, {"dead"}, {"lost"}, {"gone"}, {"deleted"} or {"broken", error} as there
--     or  {"queue", reason}  nothing can be pushed, and nothing has changed
local said = cmsgpack.unpack(ARGV[1])
local record, answers = 'w:' .. said.worker, 'a:' .. said.worker
local there = read_header('epoch', record, 'slices', 'window', 'forgotten', 'deleted')
if there.epoch ~= said.epoch then return other_epoch(said.epoch, there.deleted) end
local surprise, last = surprise_of(there[record], said.number, said.answered)
if surprise then return {surprise} end

read_marks(there.slices, said.epoch, there.window, there.forgotten)
local digits, text = nil, there.slices
local function write_worker() call('HSET', header, record, format('%d %.3f 0', said.number, now + said.lease)) end
local function answer()
  return {'ok', format('forgotten %d expires %s', forgotten, seconds_left()), digits, {}, text}
end
if said.number == last then
  digits = call('HGET', header, answers):match('^%d*')
  write_worker()
  return answer()
end
if again_vanished(slices) then
  start_over()
  return {'gone'}
end
local kind = grow(said.epoch)
if kind then return {'slices', there.slices, kind} end

-- Nothing may fail half-way: all marks would be dropped.
local target, push = KEYS[3], said.type == 'zset' and 'ZADD' or 'LPUSH'
if target then
  local found, may = call('TYPE', target).ok, redis.acl_check_cmd  -- from Redis 7
  local problem = found ~= 'none' and found ~= said.type and format('it is a %s, not a %s', found, said.type)
    or may and not may(push, target, '0', '') and format('the ACL must allow +%s', push:lower())
  if problem then return {'queue', format('cannot push to %s: %s', target, problem)} end
end

-- Push what is new as scrapy-redis's queue does, the last one first in a list.
local function push_new()
  local parts, item = {}, 0
  for entry = 1, #said.ops do
    local is_marked = said.ops:sub(entry, entry) ~= 'p'
    if is_marked then item = item + 1 end
    if not is_marked or digits:sub(item, item) == '0' then
      if push == 'ZADD' then parts[#parts + 1] = said.scored[2 * entry - 1] end
      parts[#parts + 1] = said.scored[2 * entry]
    end
  end
  if #parts > 0 then call(push, target, unpack(parts)) end
end

local function carry_out()
  if #over > 0 then drop(over) end
  digits = judge(said.ops, said.probes, said.ages)
  if target then push_new() end
  text = write_slices(slices)
  call('HSET', header, answers, digits .. ' ', 'slices', text)
  if said.ops:find('x', 1, true) then call('HSET', header, 'forgotten', format('%d', forgotten)) end
end

-- A server that is full or read-only refuses this first write, and then nothing has changed.
write_worker()
return as_a_whole(carry_out, answer)
