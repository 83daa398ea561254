-- Begin an audit of a filter that is empty, or end the one that a filter has.
--
-- KEYS[1]  the header
-- KEYS[2]  what the names of the other keys begin with
-- ARGV[1]  signature of the filter
-- ARGV[2]  its signature with the new format
-- ARGV[3]  the format
-- ARGV[4]  the share that is in the sample; empty to end the audit
--
-- Answers {"ok"}
--     or  {"marked"} if an audit is to begin, and the filter has marks. Then nothing was changed.
--     or  {"used"}   if a worker has a lease that is not over. Likewise.
--     or  {"other"}  if the filter is not there. Likewise.

@used
local state = redis.call('HMGET', KEYS[1], 'signature', 'slices', 'filled')
if state[1] ~= ARGV[1] then return {'other'} end
if ARGV[4] ~= '' and (state[2]:find(' ') or state[3] ~= '0') then return {'marked'} end
if is_used() then return {'used'} end
redis.call('HSET', KEYS[1], 'signature', ARGV[2], 'format', ARGV[3], 'audit', ARGV[4])
if ARGV[4] == '' then redis.call('HDEL', KEYS[1], 'audit') end
redis.call('HDEL', KEYS[1], 'audited')
redis.call('UNLINK', KEYS[2] .. 'sample')
return {'ok'}
