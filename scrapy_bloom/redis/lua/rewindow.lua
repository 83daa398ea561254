-- Give a filter another window, or its first one. All that it has counts as added now.
--
-- KEYS[1]  the header
-- KEYS[2]  not used
-- ARGV[1]  signature of the filter
-- ARGV[2]  its signature once its slices have dates
-- ARGV[3]  seconds of the window; 0 for ever
--
-- Answers {"ok"}
--     or  {"used"}   if a worker has a lease that is not over. Then nothing was changed.
--     or  {"other"}  if the filter is not there. Then nothing was changed.

@used
local state = redis.call('HMGET', KEYS[1], 'signature', 'slices', 'filled')
if state[1] ~= ARGV[1] then return {'other'} end
if is_used() then return {'used'} end
local words = {}
for word in state[2]:gmatch('%S+') do
  local spec, capacity, rest = word:match('^((%d+):[^:]+:%d+):?(.*)$')
  local number, items = rest:match('^(%d+):[%d.]+:(%d+)$')
  number, items = number or #words, items or capacity
  words[#words + 1] = string.format('%s:%d:%.6f:%d', spec, number, now, items)
end
words[#words] = words[#words]:gsub('%d+$', state[3])
redis.call('HSET', KEYS[1], 'signature', ARGV[2], 'dated', '1', 'window', ARGV[3], 'slices',
  table.concat(words, ' '))
return {'ok'}
