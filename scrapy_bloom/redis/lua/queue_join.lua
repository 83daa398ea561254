-- Find the queue or make one, and register a worker.
--
-- KEYS[1]  the state of the queue
-- KEYS[2]  what the names of its keys begin with
-- ARGV[1]  epoch of the state if it is made
-- ARGV[2]  worker
-- ARGV[3]  seconds that its lease lasts
-- ARGV[4]  order and codec of the queue
-- ARGV[5]  three words, if the worker was registered before: the epoch of the state then, its
--          version when last heard of, and how many requests there were; else empty
-- ARGV[6]  name of the spider whose requests these are; empty if that does not matter
-- ARGV[7]  the header of the filter. Its field `queued` tells that it marks requests of this queue: if
--          the state is not there then, it has vanished
--
-- Fails, with nothing changed, if this user may not use a command that is needed later.
-- Answers {"ok", epoch, how many requests waited when it was made, "1" if a state had vanished before
--          it and nobody has told yet how much it counted, else "0", report, time of the server,
--          another worker, the end of its lease, ...}
--     or  {"differs", program, format, order, spider} if it is not such a queue. Then nothing was
--         changed.
--     or  {"type", key, type} if a key has something else. Then nothing was changed.
local base = KEYS[2]
@queue
@leases
@queue_trial

local kinds = {[queue] = 'zset', [again] = 'set'}
for _, key in ipairs({state, taken, failed}) do kinds[key] = 'hash' end
for key, kind in pairs(kinds) do
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= kind then return {'type', key, found} end
end
local problem = refusal()
if problem then return problem end
if redis.call('EXISTS', state) == 0 then
  survey()
  local vanished = ARGV[5] == '' and redis.call('HEXISTS', ARGV[7], 'queued') or 0
  redis.call('HSET', state, 'program', 'scrapy-bloom', 'format', '1', 'order', ARGV[4], 'epoch',
    ARGV[1], 'found', counts.waiting, 'seq', '0', 'version', '0', 'losses', vanished,
    'vanished', vanished, 'emptied', '0', 'waiting', counts.waiting, 'taken', counts.taken,
    'failed', counts.failed, 'again', counts.again, 'gone', '0', 'back', '0', 'there',
    counts.waiting + counts.taken + counts.failed)
  -- Whoever has taken requests and is not heard of any more is dead, as others are.
  local fields = redis.call('HKEYS', taken)
  for i = 1, #fields do redis.call('HSET', state, 'l:' .. fields[i]:sub(1, -9), '0') end
else
  local found = redis.call('HMGET', state, 'program', 'format', 'order', 'spider')
  local known = ARGV[6] == '' or not found[4] or found[4] == ARGV[6]
  if found[1] ~= 'scrapy-bloom' or found[2] ~= '1' or found[3] ~= ARGV[4] or not known then
    return {'differs', found[1] or '', found[2] or '', found[3] or '', found[4] or ''}
  end
end
if ARGV[6] ~= '' then redis.call('HSETNX', state, 'spider', ARGV[6]) end
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local fields = redis.call('HKEYS', state)
for i = 1, #fields do
  if fields[i]:sub(1, 2) == 'd:' and redis.call('HGET', state, fields[i]) + 86400 < now then
    redis.call('HDEL', state, fields[i], 'o:' .. fields[i]:sub(3))
  end
end
-- The worker that has heard of the lost state last knows best how much has gone with it.
local function add_gone(epoch, version, number)
  local now, was, there, gone = unpack(redis.call('HMGET', state, 'epoch', 'was', 'there', 'gone'))
  if epoch == now then return end
  redis.call('HSET', state, 'vanished', '0')  -- the caller was there
  local told, told_version, told_number = (was or ''):match('^(%S+) (%d+) (%d+)$')
  if told == epoch and tonumber(told_version) >= tonumber(version) then return end
  local known = told == epoch and math.max(0, told_number - (there or 0)) or 0
  gone = (gone or 0) - known + math.max(0, number - (there or 0))
  redis.call('HSET', state, 'was', ARGV[5], 'gone', string.format('%d', gone))
end
if ARGV[5] ~= '' then add_gone(ARGV[5]:match('^(%S+) (%d+) (%d+)$')) end
-- A call that comes so late that others took the worker for dead must not let it live again: its
-- other late calls would count. And a repeated one must not take back the number of a later call.
if redis.call('HEXISTS', state, 'd:' .. ARGV[2]) == 0 then
  redis.call('HSETNX', state, 'n:' .. ARGV[2], '0 ')
  redis.call('HSETNX', state, 'o:' .. ARGV[2], '0 ok ')
  redis.call('HSET', state, 'l:' .. ARGV[2], string.format('%.6f', now + ARGV[3]))
end
local found = redis.call('HMGET', state, 'epoch', 'found', 'vanished')
begin(found[1], 'epoch')
if lost > 0 then finish(false) end
return tell({'ok', found[1], found[2], found[3] or '0', report()})
