-- Delete the filter unless other workers may live, and make an empty one if the caller wants that.
-- If it is large, this takes several calls.
--
-- KEYS[1]  the header
-- KEYS[2]  what the names of the other keys begin with
-- ARGV[1]  signature of the filter
-- ARGV[2]  worker; empty if the caller is none
-- ARGV[3]  seconds that its lease lasts
-- ARGV[4]  blocks in a key
-- ARGV[5...]  fields and values of the header of an empty filter, in which the worker is then
--          registered; nothing if no filter shall be made. From a caller that is no worker: names
--          of keys that are deleted with the filter, at the moment at which it is condemned
--
-- Answers {"ok"}
--     or  {"more"} if the filter is condemned, and the same call is needed again to go on deleting
--     or  {"used"} if another worker has a lease, even one that is over. Then nothing was changed.
--         Dead workers have been removed from the register before.
--     or  {"other"} if the filter is not there. Then nothing was changed.

@others
@clearing
local state = redis.call('HMGET', KEYS[1], 'signature', 'condemned')
if state[2] ~= ARGV[1] then
  if state[1] ~= ARGV[1] then return {'other'} end
  -- A server without memory refuses this. It would not refuse to delete, and no lease can be
  -- renewed there.
  redis.call('HSET', KEYS[1], 'signature', ARGV[1])
  for _, record in pairs(others()) do
    if record:sub(1, 1) ~= '-' then return {'used'} end
  end
  -- From here on the filter is gone for all other scripts.
  redis.call('HSET', KEYS[1], 'signature', '', 'condemned', ARGV[1],
    'clearing', '0 0 ' .. ARGV[4] .. ' ' .. KEYS[2])
  if ARGV[2] == '' and #ARGV > 4 then
    redis.call('UNLINK', (table.unpack or unpack)(ARGV, 5))
  end
end
if not clear_part() then return {'more'} end
if ARGV[2] ~= '' and #ARGV > 4 then
  local time = redis.call('TIME')
  local lease = string.format('%.6f', time[1] + time[2] / 1000000 + ARGV[3])
  redis.call('HSET', KEYS[1], 'w:' .. ARGV[2], '0 ok ', 'l:' .. ARGV[2], lease,
    (table.unpack or unpack)(ARGV, 5))
end
return {'ok'}
