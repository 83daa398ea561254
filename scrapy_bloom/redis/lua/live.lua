-- List the other workers whose leases are not over.
--
-- KEYS[1]  the header
-- KEYS[2]  not used
-- ARGV[1]  signature of the filter
-- ARGV[2]  worker
--
-- Answers {"ok", worker, end of its lease, ...}
--     or  {"other"} if the filter is not there.

if redis.call('HGET', KEYS[1], 'signature') ~= ARGV[1] then return {'other'} end
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local answer = {'ok'}
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local name = fields[i]:sub(3)
  if fields[i]:sub(1, 2) == 'l:' and name ~= ARGV[2] and tonumber(fields[i + 1]) >= now then
    answer[#answer + 1] = name
    answer[#answer + 1] = fields[i + 1]
  end
end
return answer
