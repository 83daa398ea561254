-- The records of the other workers in the register: the end of the lease, "-" if it was given up,
-- and the number of the last call. A record changes with every sign of life.
local function others()
  local leases, numbers, records = {}, {}, {}
  local fields = redis.call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    local kind, name = fields[i]:sub(1, 2), fields[i]:sub(3)
    if name ~= ARGV[2] then
      if kind == 'l:' then leases[name] = fields[i + 1] end
      if kind == 'w:' then numbers[name] = fields[i + 1]:match('^%d*') end
    end
  end
  for name, number in pairs(numbers) do records[name] = (leases[name] or '-') .. ' ' .. number end
  for name, lease in pairs(leases) do records[name] = records[name] or lease .. ' ' end
  return records
end

-- Add the server's time and the records to an answer.
local function tell(answer, records)
  local time = redis.call('TIME')
  answer[#answer + 1] = string.format('%d.%06d', time[1], time[2])
  for name, record in pairs(records) do
    answer[#answer + 1] = name
    answer[#answer + 1] = record
  end
  return answer
end
