-- Make a filter of keys that are there already, in the place of none or of a given one.
--
-- KEYS[1]  the header
-- KEYS[2]  what the names of the other keys begin with
-- ARGV[1]  signature of the new filter
-- ARGV[2]  signature of the filter that it takes the place of; empty if there must be none
-- ARGV[3...]  fields and values of its header
--
-- Answers {"ok", field, value, ...}  fields of the filter that was there, for its keys to be
--                        deleted; none if the same call has installed the filter before
--     or  {"lost", name}  if a segment is not there. The keys of other layouts than "bitmap" may be too
--                        many for one call: whoever sends them looks at them before.
--     or  {"used"}       if a worker is registered in the filter that is there
--     or  {"other"}      if something else is there. If not "ok", nothing was changed.
local there = redis.call('TYPE', KEYS[1]).ok
local old = {}
if there == 'hash' then
  local signature = redis.call('HGET', KEYS[1], 'signature')
  if signature == ARGV[1] then return {'ok'} end
  if ARGV[2] == '' or signature ~= ARGV[2] then return {'other'} end
  old = redis.call('HGETALL', KEYS[1])
  for i = 1, #old, 2 do
    if old[i]:sub(1, 2) == 'w:' then return {'used'} end
  end
elseif there ~= 'none' or ARGV[2] ~= '' then
  return {'other'}
end
local made = {}
for i = 3, #ARGV, 2 do
  if ARGV[i]:sub(1, 2) == 'm:' then made[#made + 1] = KEYS[2] .. ARGV[i]:sub(3) end
  if ARGV[i] == 'again' then made[#made + 1] = KEYS[2] .. 'again' end
end
for i = 3, #ARGV, 2 do
  if ARGV[i] == 'layout' and ARGV[i + 1] ~= 'bitmap' then made = {} end
end
for i = 1, #made do
  if redis.call('EXISTS', made[i]) == 0 then return {'lost', made[i]} end
end
for i = 1, #made do redis.call('PERSIST', made[i]) end
local queued = redis.call('HGET', KEYS[1], 'queued')  -- of the queue beside it, which stays
redis.call('UNLINK', KEYS[1])
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
if queued then redis.call('HSET', KEYS[1], 'queued', queued) end
table.insert(old, 1, 'ok')
return old
