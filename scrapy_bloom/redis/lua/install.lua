-- Make a filter of keys that are there already, where none is.
--
-- KEYS[1]  the header
-- KEYS[2]  what the names of the other keys begin with
-- ARGV[1]  signature of the new filter
-- ARGV[2...]  fields and values of its header
--
-- Answers {"ok"}         also if the same call has installed the filter before
--     or  {"lost", name}  if a segment is not there. The keys of other layouts than "bitmap" may be too
--                        many for one call: whoever sends them looks at them before.
--     or  {"other"}      if something else is there. If not "ok", nothing was changed.
local there = redis.call('TYPE', KEYS[1]).ok
if there == 'hash' and redis.call('HGET', KEYS[1], 'signature') == ARGV[1] then return {'ok'} end
if there ~= 'none' then return {'other'} end
local made = {}
for i = 2, #ARGV, 2 do
  if ARGV[i]:sub(1, 2) == 'm:' then made[#made + 1] = KEYS[2] .. ARGV[i]:sub(3) end
  if ARGV[i] == 'again' then made[#made + 1] = KEYS[2] .. 'again' end
end
for i = 2, #ARGV, 2 do
  if ARGV[i] == 'layout' and ARGV[i + 1] ~= 'bitmap' then made = {} end
end
for i = 1, #made do
  if redis.call('EXISTS', made[i]) == 0 then return {'lost', made[i]} end
end
for i = 1, #made do redis.call('PERSIST', made[i]) end
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
return {'ok'}
