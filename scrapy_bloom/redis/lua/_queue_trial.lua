-- Part of queue_join.lua: tries every command that the scripts of the queue use beside those of the
-- filter, so that a user who may not use one of them learns it now. Leaves no key.
local function refusal()
  local trial = KEYS[2] .. 'trial'
  local commands = {
    {'UNLINK', trial},  -- first: what follows is undone by it
    {'ZADD', trial, '0', 'x'},
    {'ZCARD', trial},
    {'ZPOPMIN', trial, '1'},
    {'HSET', trial, 'x', '1'},
    {'HLEN', trial},
    {'HSCAN', trial, '0'},
    {'UNLINK', trial},
    {'SADD', trial, 'x'},
    {'SCARD', trial},
    {'SREM', trial, 'x'},
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
