-- Part of scripts that make a numbered call of a worker, where they say "numbered": finds the filter,
-- the worker and its last call, and gives the answer to that again if it is asked for.
local number, answered, look_for_losses, known = ARGV[3]:match('(%d+) (%d+) (%d) (%S+)')
number, answered, known = tonumber(number), tonumber(answered), tonumber(known)
local header, worker = KEYS[1], 'w:' .. ARGV[2]
local state = redis.call('HMGET', header, 'signature', worker, 'slices', 'filled', 'losses',
  'again')
if state[1] ~= ARGV[1] then return 'other' end
if not state[2] then return 'stranger' end
local text, filled, losses = state[3], tonumber(state[4]), tonumber(state[5])
local again_field = state[6]
local last, status, digits = state[2]:match('^(%d+) (%a+) (%d*)$')
last = tonumber(last)
local function answer(rolled_back)
  local line = status .. ' ' .. losses .. ' ' .. rolled_back .. ' ' .. digits
  return (status == 'full' or status == 'due') and line .. ' ' .. text or line
end
if number < last then return 'stale' end
if number == last then return answer(0) end
