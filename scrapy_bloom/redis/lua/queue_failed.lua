-- List requests that nobody takes any more.
--
-- KEYS[1]  the state of the queue
-- KEYS[2]  what the names of its keys begin with
-- ARGV[1]  epoch of the state
-- ARGV[2]  how many
--
-- Answers {"ok", request, ...}; a request is what was stored in `taken`
--     or  {"other"} if the queue is not there
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return {'other'} end
local answer, cursor = {'ok'}, '0'
repeat
  local found = redis.call('HSCAN', KEYS[2] .. 'failed', cursor, 'COUNT', '100')
  cursor = found[1]
  for i = 2, #found[2], 2 do
    if #answer > tonumber(ARGV[2]) then return answer end
    answer[#answer + 1] = found[2][i]
  end
until cursor == '0'
return answer
