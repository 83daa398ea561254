-- Tell the numbers in some buckets of a filter of the layout "sets". Writes nothing.
--
-- KEYS[1]  the header
-- KEYS[2]  what the names of the buckets begin with
-- ARGV[1]  signature of the filter
-- ARGV[2]  number of the slice
-- ARGV[3...]  numbers of the buckets
--
-- Answers {"ok", numbers with blanks between them, ...}  an empty text for a bucket that is not there
--     or  {"other"} if the filter is not there.
if redis.call('HGET', KEYS[1], 'signature') ~= ARGV[1] then return {'other'} end
local answer = {'ok'}
for i = 3, #ARGV do
  local numbers = redis.call('SMEMBERS', KEYS[2] .. ARGV[2] .. '.' .. ARGV[i])
  answer[#answer + 1] = table.concat(numbers, ' ')
end
return answer
