-- Part of _mark.lua where items have a greatest age: `ages_text` lists ITEM:SECONDS. Dates are in a hash
-- beside each slice, from the bytes of a probe to seconds since 1970, and go with the slice.
local moment = redis.call('TIME')
moment = moment[1] + moment[2] / 1000000
local asked = {}
for item, age in ages_text:gmatch('(%d+):(%S+)') do asked[tonumber(item)] = tonumber(age) end

local function remember(raw)
  local key = KEYS[2] .. slices[#slices].number .. '.ages'
  call('HSET', key, raw, string.format('%.6f', moment))
end

-- Whether an item was let through less than `age` seconds ago.
local function is_fresh(raw, age)
  if listed > 0 and is_again(raw) then return false end
  for index = #slices, oldest, -1 do
    local last = call('HGET', KEYS[2] .. slices[index].number .. '.ages', raw)
    if last then
      if tonumber(last) > moment then  -- the clock went back: it counts as of now
        last = moment
        remember(raw)
      end
      return moment - last < age
    end
  end
  return false
end
