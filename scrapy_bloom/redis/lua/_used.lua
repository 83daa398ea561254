local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000

-- Whether a worker has a lease that is not over.
local function is_used()
  local fields = redis.call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    if fields[i]:sub(1, 2) == 'l:' and tonumber(fields[i + 1]) >= now then return true end
  end
  return false
end
