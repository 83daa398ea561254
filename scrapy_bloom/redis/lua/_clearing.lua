-- Part of clear.lua and open.lua, where they say "clearing": deletes a filter that has been condemned,
-- a part at a time, so that the server never stands still for long. Its header goes last. Until
-- then its field "clearing" says where to go on, and whoever meets it goes on.
local PART = 2000  -- keys: about 2 ms if they are small
local BLOCKS = 4096  -- that these keys may have room for: Redis takes time to free large strings
local NAMES = 500  -- in one command

-- Returns whether nothing is left.
local function clear_part()
  local state = redis.call('HMGET', KEYS[1], 'clearing', 'slices', 'dropped')
  local slice, number, per_key, prefix = state[1]:match('^(%d+) (%d+) (%d+) (.*)$')
  slice, number = tonumber(slice), tonumber(number)
  local left = math.max(1, math.min(PART, math.floor(BLOCKS / per_key)))
  local names, index = {}, 0
  local parts = {}  -- the number of each slice, and how many keys it has
  for word in state[2]:gmatch('%S+') do
    local blocks, named = word:match('^%d+:[^:]+:(%d+):?(%d*)')
    parts[#parts + 1] = {named == '' and #parts or named, math.ceil(blocks / per_key)}
  end
  for named, keys in (state[3] or ''):gmatch('(%d+):(%d+)') do
    parts[#parts + 1] = {named, tonumber(keys)}
  end
  for _, part in ipairs(parts) do
    local keys = part[2]
    if index == slice and number == 0 then names[#names + 1] = prefix .. part[1] .. '.ages' end
    while index == slice and left > 0 and number < keys do
      names[#names + 1] = prefix .. part[1] .. '.' .. number
      number, left = number + 1, left - 1
      if #names == NAMES then
        redis.call('UNLINK', (table.unpack or unpack)(names))
        names = {}
      end
    end
    if index == slice and number >= keys then slice, number = slice + 1, 0 end
    index = index + 1
  end
  if #names > 0 then redis.call('UNLINK', (table.unpack or unpack)(names)) end
  if slice == index then
    redis.call('UNLINK', KEYS[1], prefix .. 'again')
    return true
  end
  redis.call('HSET', KEYS[1], 'clearing', slice .. ' ' .. number .. ' ' .. per_key .. ' ' .. prefix)
  return false
end
