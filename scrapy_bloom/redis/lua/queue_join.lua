-- Find the queue or make one, and register a worker.
--
-- KEYS[1]  the state of the queue
-- KEYS[2]  what the names of its keys begin with
-- ARGV[1]  epoch of the state if it is made
-- ARGV[2]  worker
-- ARGV[3]  seconds that its lease lasts
-- ARGV[4]  order and codec of the queue
-- ARGV[5]  if the worker was registered before and the server does not know it: the number of the last
--          offer whose answer it has, a space, and its old name; else empty. Nothing is made then
-- ARGV[6]  name of the spider whose requests these are; empty if that does not matter
-- ARGV[7]  the header of the filter. Its field `queued` tells that it marks requests of this queue: if
--          the state is not there then, it has vanished
--
-- Fails, with nothing changed, if this user may not use a command that is needed later.
-- Answers {"ok", epoch, report, field `copied`, time of the server, another worker, the end of its lease, ...}
-- or, with nothing changed,
--         {"other"} if the worker was registered before, and the queue is not there
--         {"back"} if it was, and nobody has taken it for dead since that offer: the server has gone
--         back to an older state
--         {"vanished"} if the state has vanished from beside its marks
--         {"differs", program, format, order, spider} if it is not such a queue
--         {"type", key, type} if a key has something else
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
if ARGV[5] ~= '' then
  if redis.call('HGET', state, 'epoch') ~= ARGV[1] then return {'other'} end
  local offered, old = ARGV[5]:match('^(%d+) (.*)$')
  local record = redis.call('HGET', state, 'o:' .. old)
  if not record or redis.call('HEXISTS', state, 'd:' .. old) == 0
    or tonumber(record:match('^%d+')) < tonumber(offered) then return {'back'} end
end
if redis.call('EXISTS', state) == 0 then
  if redis.call('HEXISTS', ARGV[7], 'queued') == 1 then return {'vanished'} end
  survey()
  redis.call('HSET', state, 'program', 'scrapy-bloom', 'format', '1', 'order', ARGV[4], 'epoch',
    ARGV[1], 'seq', '0', 'version', '0', 'waiting', counts.waiting, 'taken', counts.taken,
    'failed', counts.failed, 'again', counts.again, 'gone', '0')
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
-- A call that comes so late that others took the worker for dead must not let it live again: its
-- other late calls would count. And a repeated one must not take back the number of a later call.
if redis.call('HEXISTS', state, 'd:' .. ARGV[2]) == 0 then
  redis.call('HSETNX', state, 'n:' .. ARGV[2], '0 ')
  redis.call('HSETNX', state, 'o:' .. ARGV[2], '0 ok ')
  redis.call('HSET', state, 'l:' .. ARGV[2], string.format('%.6f', now + ARGV[3]))
end
local epoch = redis.call('HGET', state, 'epoch')
begin(epoch, 'epoch')
if lost > 0 then finish(false) end
return tell({'ok', epoch, report(), redis.call('HGET', state, 'copied') or ''})
