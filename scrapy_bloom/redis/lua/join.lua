-- Register a worker.
--
-- KEYS[1]  the header
-- KEYS[2]  what the names of the filter's segments begin with
-- ARGV[1]  signature of the filter
-- ARGV[2]  worker
-- ARGV[3]  seconds that its lease lasts
--
-- Fails, with nothing changed, if this user may not use a command that is needed later.
-- Answers {"ok", time of the server, another worker in the register, its record, ...}
--     or  {"other"} if the filter is not there. Then nothing was changed.

@trial
@others
if redis.call('HGET', KEYS[1], 'signature') ~= ARGV[1] then return {'other'} end
local problem = refusal()
if problem then return problem end
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
-- A repeated call must not take back the number of a call that was made since.
redis.call('HSETNX', KEYS[1], 'w:' .. ARGV[2], '0 ok ')
redis.call('HSET', KEYS[1], 'l:' .. ARGV[2], string.format('%.6f', now + ARGV[3]))
return tell({'ok'}, others())
