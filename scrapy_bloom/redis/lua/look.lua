-- List the other workers in the register, and remove those that are dead.
--
-- KEYS[1]  the header
-- KEYS[2]  not used
-- ARGV[1]  signature of the filter
-- ARGV[2]  worker
-- ARGV[3]  "1" to give up the worker's own lease: otherwise several workers that want to clear the
--          filter at the same time would wait for each other
-- ARGV[4...]  worker, record, ...: remove each of these workers that still has this record
--
-- Answers {"ok", time of the server, worker, record, ...}
--     or  {"other"} if the filter is not there. Then nothing was changed.

@others
if redis.call('HGET', KEYS[1], 'signature') ~= ARGV[1] then return {'other'} end
if ARGV[3] == '1' then
  -- A server without memory refuses this. It would not refuse to delete, and no lease can be
  -- renewed there.
  redis.call('HSET', KEYS[1], 'signature', ARGV[1])
  redis.call('HDEL', KEYS[1], 'l:' .. ARGV[2])
end
local records = others()
for i = 4, #ARGV, 2 do
  local name = ARGV[i]
  if records[name] == ARGV[i + 1] then
    redis.call('HDEL', KEYS[1], 'l:' .. name, 'w:' .. name)
    records[name] = nil
  end
end
return tell({'ok'}, records)
