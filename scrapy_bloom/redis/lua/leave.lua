-- Remove a worker from the register.
--
-- KEYS[1]  the header
-- KEYS[2]  not used
-- ARGV[1]  signature of the filter
-- ARGV[2]  worker
--
-- Answers {"ok"}
--     or  {"other"} if the filter is not there.

if redis.call('HGET', KEYS[1], 'signature') ~= ARGV[1] then return {'other'} end
redis.call('HDEL', KEYS[1], 'l:' .. ARGV[2], 'w:' .. ARGV[2])
return {'ok'}
