-- What a worker sends to a filter whose requests are stored elsewhere: marks; and what is to be pushed to scrapy-redis's
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
local sent = cmsgpack.unpack(ARGV[1])
local record, answers = 'w:' .. sent.worker, 'a:' .. sent.worker
local fields = read_header('epoch', record, 'slices', 'window', 'forgotten', 'deleted')
if fields.epoch ~= sent.epoch then return other_epoch(sent.epoch, fields.deleted) end
local surprise, last = surprise_of(fields[record], sent.number, sent.answered)
if surprise then return {surprise} end

read_marks(fields.slices, sent.epoch, fields.window, fields.forgotten)
local digits, text = nil, fields.slices
local function write_worker() call('HSET', header, record, format('%d %.3f 0', sent.number, now + sent.lease)) end
local function answer()
  return {'ok', format('forgotten %d expires %s', forgotten, seconds_left()), digits, {}, text}
end
if sent.number == last then
  digits = call('HGET', header, answers):match('^%d*')
  write_worker()
  return answer()
end
if again_vanished(slices) then
  start_over()
  return {'gone'}
end
local kind = grow(sent.epoch)
if kind then return {'slices', fields.slices, kind} end

-- Nothing may fail half-way: all marks would be dropped.
local queue_key, push = KEYS[3], sent.type == 'zset' and 'ZADD' or 'LPUSH'
if queue_key then
  local found, may = call('TYPE', queue_key).ok, redis.acl_check_cmd  -- from Redis 7
  local problem = found ~= 'none' and found ~= sent.type and format('it is a %s, not a %s', found, sent.type)
    or may and not may(push, queue_key, '0', '') and format('the ACL must allow +%s', push:lower())
  if problem then return {'queue', format('cannot push to %s: %s', queue_key, problem)} end
end

-- Push what is new as scrapy-redis's queue does, the last one first in a list.
local function push_new()
  local parts, item = {}, 0
  for entry = 1, #sent.ops do
    local is_marked = sent.ops:sub(entry, entry) ~= 'p'
    if is_marked then item = item + 1 end
    if not is_marked or digits:sub(item, item) == '0' then
      if push == 'ZADD' then parts[#parts + 1] = sent.scored[2 * entry - 1] end
      parts[#parts + 1] = sent.scored[2 * entry]
    end
  end
  if #parts > 0 then call(push, queue_key, unpack(parts)) end
end

local function carry_out()
  if #over > 0 then drop(over) end
  digits = judge(sent.ops, sent.probes, sent.ages)
  if queue_key then push_new() end
  text = write_slices(slices)
  call('HSET', header, answers, digits .. ' ', 'slices', text)
  if sent.ops:find('x', 1, true) then call('HSET', header, 'forgotten', format('%d', forgotten)) end
end

-- A server that is full or read-only refuses this first write, and then nothing has changed.
write_worker()
return as_a_whole(carry_out, answer)
