-- Renew a worker's lease, and tell of the others.
--
-- KEYS[1]  the state of the queue
-- KEYS[2]  what the names of its keys begin with
-- ARGV[1]  epoch of the state
-- ARGV[2]  worker
-- ARGV[3]  seconds that its lease lasts
--
-- Answers {"ok", report, time of the server, another worker, the end of its lease, ...}
--     or  {"stranger"} if the worker is not registered
--     or  {"other"} if the queue is not there
local base = KEYS[2]
@queue
@leases
local record, word = begin(ARGV[1], 'n:' .. ARGV[2])
if not record then return {word} end
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local old = redis.call('HGET', state, 'l:' .. ARGV[2])
local lease = string.format('%.6f', now + ARGV[3])
-- Others know a live worker by the change, also where the clock stands still.
if lease == old then lease = string.format('%.6f', now + ARGV[3] + 0.000001) end
redis.call('HSET', state, 'l:' .. ARGV[2], lease)
if lost > 0 then finish(false) end
return tell({'ok', report()})
