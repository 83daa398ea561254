-- Delete the filter unless other workers may live, and make an empty one if the caller wants that.
--
-- KEYS[1]  the header
-- KEYS[2]  what the names of the filter's segments begin with
-- ARGV[1]  signature of the filter
-- ARGV[2]  worker
-- ARGV[3]  seconds that its lease lasts
-- ARGV[4]  blocks in a segment
-- ARGV[5...]  fields and values of the header of an empty filter, in which the worker is then
--          registered; nothing if no filter shall be made
--
-- Answers {"ok"}
--     or  {"used"} if another worker has a lease, even one that is over. Then nothing was changed.
--         Dead workers have been removed from the register before.
--     or  {"other"} if the filter is not there. Then nothing was changed.

@others
if redis.call('HGET', KEYS[1], 'signature') ~= ARGV[1] then return {'other'} end
-- A server without memory refuses this. It would not refuse to delete, and no lease can be renewed
-- there.
redis.call('HSET', KEYS[1], 'signature', ARGV[1])
for _, record in pairs(others()) do
  if record:sub(1, 1) ~= '-' then return {'used'} end
end
local slice = 0
for blocks in redis.call('HGET', KEYS[1], 'slices'):gmatch('%d+:[^: ]+:(%d+)') do
  for segment = 0, math.ceil(blocks / ARGV[4]) - 1 do
    redis.call('UNLINK', KEYS[2] .. slice .. '.' .. segment)
  end
  slice = slice + 1
end
redis.call('UNLINK', KEYS[1])
if #ARGV > 4 then
  local time = redis.call('TIME')
  local lease = string.format('%.6f', time[1] + time[2] / 1000000 + ARGV[3])
  redis.call('HSET', KEYS[1], 'w:' .. ARGV[2], '0 ok ', 'l:' .. ARGV[2], lease,
    unpack(ARGV, 5))
end
return {'ok'}
