-- Give up a worker's lease, and delete the filter unless other workers live. Of workers that finish
-- at the same time, the last one deletes it.
--
-- KEYS[1]  the header
-- KEYS[2]  what the names of the filter's segments begin with
-- ARGV[1]  signature of the filter
-- ARGV[2]  worker
-- ARGV[3]  blocks in a segment
--
-- Answers {"ok"}
--     or  {"used", worker, end of its lease, ...} if others live. Then nothing was deleted.
--     or  {"other"} if the filter is not there.

if redis.call('HGET', KEYS[1], 'signature') ~= ARGV[1] then return {'other'} end
redis.call('HDEL', KEYS[1], 'l:' .. ARGV[2])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local used = {'used'}
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  if fields[i]:sub(1, 2) == 'l:' and tonumber(fields[i + 1]) >= now then
    used[#used + 1] = fields[i]:sub(3)
    used[#used + 1] = fields[i + 1]
  end
end
if #used > 1 then return used end
local slice = 0
for blocks in redis.call('HGET', KEYS[1], 'slices'):gmatch('%d+:[^: ]+:(%d+)') do
  for segment = 0, math.ceil(blocks / ARGV[3]) - 1 do
    redis.call('UNLINK', KEYS[2] .. slice .. '.' .. segment)
  end
  slice = slice + 1
end
redis.call('UNLINK', KEYS[1])
return {'ok'}
