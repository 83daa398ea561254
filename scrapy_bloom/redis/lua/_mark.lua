-- Part of add.lua and offer.lua: adds the items of `probes` to the filter, and puts a digit for each
-- into `answers`. Between "offer begins" and "offer ends" offer.lua may change a verdict.
local newest = #slices
local function mark()
  local position, length, count = 1, #probes, 0
  local room = slices[newest].capacity - filled
  while position <= length do
    local @probe, following = read(@format, probes, position)
    local full = room <= 0
    local seen = false
    for index = full and newest or newest - 1, 1, -1 do
      local found = has(index, @probe)
      if found == nil then missed(index, @probe) end
      if found then
        seen = true
        break
      end
    end
    if not seen and full then
      if known ~= newest then
        status = 'full'
        break
      end
      text = text .. ' ' .. ARGV[5]
      know(ARGV[5]:match('^(%d+):([^: ]+):(%d+)$'))
      newest = newest + 1
      filled, room = 0, slices[newest].capacity
    end
    if not seen then
      seen = put(newest, @probe)
      if not seen then filled, room = filled + 1, room - 1 end
    end
    if seen and listed > 0 and admit_again(probes:sub(position, following - 1)) then seen = false end
-- offer begins
    seen = admit(count + 1, seen)
-- offer ends
    count = count + 1
    answers[count] = seen and '1' or '0'
    position = following
  end
end
