-- Find a filter or make one.
--
-- KEYS[1]   the header
-- KEYS[2]   what the names of its segments would begin with if it is made
-- ARGV[1]   not used
-- ARGV[2...]  fields and values of a new header
--
-- Fails, with nothing changed, if this user may not use a command that is needed later.
-- Answers {"ok", made (0 or 1), field, value, ...}
--     or  {"more"} if somebody is clearing the filter there, and the same call is needed again. A part
--         of it was deleted.
--     or  {"type", type} if the key is no hash. Then nothing was changed.

@trial
@clearing
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'hash' then return {'type', kind} end
if kind == 'hash' and redis.call('HEXISTS', KEYS[1], 'clearing') == 1 then
  if not clear_part() then return {'more'} end
  kind = 'none'
end
if kind == 'none' then
  local problem = refusal()
  if problem then return problem end
  redis.call('HSET', KEYS[1], (table.unpack or unpack)(ARGV, 2))
end
local answer = redis.call('HGETALL', KEYS[1])
table.insert(answer, 1, 'ok')
table.insert(answer, 2, kind == 'none' and 1 or 0)
return answer
