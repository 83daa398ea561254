-- Add the server's time, and the other workers of a queue with their leases, to an answer.
local function tell(answer)
  local time = redis.call('TIME')
  answer[#answer + 1] = string.format('%d.%06d', time[1], time[2])
  local fields = redis.call('HKEYS', state)
  for i = 1, #fields do
    local name = fields[i]:match('^l:(.*)$')
    if name and name ~= ARGV[2] then
      answer[#answer + 1] = name
      answer[#answer + 1] = redis.call('HGET', state, fields[i])
    end
  end
  return answer
end
