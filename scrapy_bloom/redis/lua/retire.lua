-- Delete the header of a filter that nobody uses. Its segments are deleted afterwards, some at once.
--
-- KEYS[1]  the header
-- KEYS[2]  not used
-- ARGV[1]  signature of the filter
-- ARGV[2...]  names of keys that are deleted with the header, at the same moment
--
-- Answers {"ok", field, value, ...}  the fields of the header
--     or  {"used"}   if a worker is registered. Then nothing was changed.
--     or  {"other"}  if the filter is not there. Then nothing was changed.
if redis.call('HGET', KEYS[1], 'signature') ~= ARGV[1] then return {'other'} end
local old = redis.call('HGETALL', KEYS[1])
for i = 1, #old, 2 do
  if old[i]:sub(1, 2) == 'w:' then return {'used'} end
end
redis.call('UNLINK', KEYS[1], (table.unpack or unpack)(ARGV, 2))
table.insert(old, 1, 'ok')
return old
