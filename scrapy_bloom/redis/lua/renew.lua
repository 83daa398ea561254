-- Renew a worker's lease.
--
-- KEYS[1]  the header
-- KEYS[2]  not used
-- ARGV[1]  signature of the filter
-- ARGV[2]  worker
-- ARGV[3]  seconds that its lease lasts
--
-- Answers {"ok"}
--     or  {"stranger"} if the worker is not registered
--     or  {"other"} if the filter is not there.

if redis.call('HGET', KEYS[1], 'signature') ~= ARGV[1] then return {'other'} end
if redis.call('HEXISTS', KEYS[1], 'w:' .. ARGV[2]) == 0 then return {'stranger'} end
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
redis.call('HSET', KEYS[1], 'l:' .. ARGV[2], string.format('%.6f', now + ARGV[3]))
return {'ok'}
