-- Part of open.lua and join.lua, where they say "trial": tries every command that scripts and worker
-- use on the filter, so that a user who may not use one of them learns it now. Leaves no key.
@layout
local function refusal()
  local key = KEYS[2] .. 'trial'
  local tries = {
    {'UNLINK', key},  -- first: what follows is undone by it
    {'TIME'},
    {'TYPE', key},
    {'EXISTS', key},
    {'HSETNX', key, 'x', '1'},
    {'HSET', key, 'x', '1'},
    {'HGET', key, 'x'},
    {'HMGET', key, 'x'},
    {'HGETALL', key},
    {'HKEYS', key},
    {'HEXISTS', key, 'x'},
    {'HDEL', key, 'x'},
  }
  for _, try in ipairs(trial(key)) do tries[#tries + 1] = try end
  for i, try in ipairs(tries) do
    local answer = redis.pcall((table.unpack or unpack)(try))
    if try.answers and type(answer) ~= 'table' and answer ~= try.answers then
      answer = {err = try.otherwise}
    end
    if type(answer) == 'table' and answer.err then
      if i > 1 then redis.call('UNLINK', key) end
      return answer
    end
  end
  redis.call('UNLINK', key)
end
