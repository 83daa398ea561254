-- Part of open.lua and join.lua, where they say "trial": tries every command that scripts and worker
-- use on the filter, so that a user who may not use one of them learns it now. Leaves no key.
local function refusal()
  local trial = KEYS[2] .. 'trial'
  local commands = {
    {'UNLINK', trial},  -- first: what follows is undone by it
    {'TIME'},
    {'TYPE', trial},
    {'EXISTS', trial},
    {'HSETNX', trial, 'x', '1'},
    {'HSET', trial, 'x', '1'},
    {'HGET', trial, 'x'},
    {'HMGET', trial, 'x'},
    {'HGETALL', trial},
    {'HKEYS', trial},
    {'HEXISTS', trial, 'x'},
    {'HDEL', trial, 'x'},
    {'SETBIT', trial, '0', '1'},
    {'BITFIELD', trial, 'SET', 'u1', '0', '1'},
    {'BITFIELD_RO', trial, 'GET', 'u1', '0'},
    {'BITCOUNT', trial},
    {'UNLINK', trial},
  }
  for i = 1, #commands do
    local answer = redis.pcall(unpack(commands[i]))
    if type(answer) == 'table' and answer.err then
      if i > 1 then redis.call('UNLINK', trial) end
      return answer
    end
  end
end
