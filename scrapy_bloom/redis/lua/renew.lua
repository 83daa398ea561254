-- Renew a worker's lease.
--
-- KEYS[1]  the header
-- KEYS[2]  not used
-- ARGV[1]  signature of the filter
-- ARGV[2]  worker
-- ARGV[3]  seconds that its lease lasts
-- ARGV[4]  "1" to take a lease again that was given up
--
-- Answers {"ok", time of the server, how many items were taken out}; then the worker has a lease,
--         unless it gave it up
--     or  {"stranger"} if the worker is not registered
--     or  {"other"} if the filter is not there.

if redis.call('HGET', KEYS[1], 'signature') ~= ARGV[1] then return {'other'} end
if redis.call('HEXISTS', KEYS[1], 'w:' .. ARGV[2]) == 0 then return {'stranger'} end
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local field = 'l:' .. ARGV[2]
local old = redis.call('HGET', KEYS[1], field)
if old or ARGV[4] == '1' then
  local lease = string.format('%.6f', now + ARGV[3])
  -- Others know a live worker by the change, also where the clock stands still.
  if lease == old then lease = string.format('%.6f', now + ARGV[3] + 0.000001) end
  redis.call('HSET', KEYS[1], field, lease)
end
local forgotten = redis.call('HGET', KEYS[1], 'forgotten') or '0'
return {'ok', string.format('%d.%06d', time[1], time[2]), forgotten}
