-- Register a worker, and forget those that have stopped without a word.
--
-- KEYS[1]  the header
-- KEYS[2]  what the names of the filter's segments begin with
-- ARGV[1]  signature of the filter
-- ARGV[2]  worker
-- ARGV[3]  seconds that its lease lasts
--
-- Fails, with nothing changed, if this user may not use a command that is needed later.
-- Answers {"ok", how many workers were forgotten, how many others live}
--     or  {"other"} if the filter is not there. Then nothing was changed.

@trial
if redis.call('HGET', KEYS[1], 'signature') ~= ARGV[1] then return {'other'} end
local problem = refusal()
if problem then return problem end
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local dead, live = 0, 0
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  if fields[i]:sub(1, 2) == 'l:' then
    local name = fields[i]:sub(3)
    if tonumber(fields[i + 1]) < now then
      redis.call('HDEL', KEYS[1], 'l:' .. name, 'w:' .. name)
      dead = dead + 1
    else
      live = live + 1
    end
  end
end
-- This script may be delivered twice, the second time after calls of the worker: their answer stays.
redis.call('HSETNX', KEYS[1], 'w:' .. ARGV[2], '0 ok ')
redis.call('HSET', KEYS[1], 'l:' .. ARGV[2], string.format('%.6f', now + ARGV[3]))
return {'ok', dead, live}
