-- Part of add.lua and offer.lua: adds the items of `probes` to the filter, and puts a digit for each
-- into `answers`. Between "offer begins" and "offer ends" offer.lua may change a verdict. The other
-- parts that are marked so are for filters with dates, for those without, and for greatest ages.
local newest = #slices
-- ages begins
@ages
-- ages ends
local function mark()
  local position, length, count = 1, #probes, 0
  local room = slices[newest].capacity - filled
  while position <= length do
    local @probe, following = read(@format, probes, position)
    local full = room <= 0
    local seen, lowest = false, oldest
-- window begins
    full = full or due
    local forgotten = listed > 0 and is_again(probes:sub(position, following - 1))
    if forgotten then lowest = generation() end  -- it is to be kept for as long as a new one
-- window ends
-- ages begins
    local raw, age = probes:sub(position, following - 1), asked[count + 1]
    local fresh = age and is_fresh(raw, age)
    if fresh then
      full, lowest = true, newest + 1  -- nothing is looked up
      seen = true
    end
-- ages ends
-- window begins
-- ages begins
    if age and not fresh then lowest = generation() end
-- ages ends
-- window ends
    for index = full and newest or newest - 1, lowest, -1 do
      local found = has(index, @probe)
      if found == nil then missed(index, @probe) end
      if found then
        seen = true
        break
      end
    end
    if not seen and full then
-- plain begins
      if known ~= newest then
        status = 'full'
        break
      end
      text = text .. ' ' .. ARGV[5]
      know(ARGV[5]:match('^(%d+):([^: ]+):(%d+)$'))
-- plain ends
-- window begins
      if known ~= next_number() then
        status = due and 'due' or 'full'
        break
      end
      add_slice(ARGV[5])
-- window ends
      newest = newest + 1
      filled, room = 0, slices[newest].capacity
    end
    if not seen then
      seen = put(newest, @probe)
      if not seen then filled, room = filled + 1, room - 1 end
    end
-- plain begins
    if seen and listed > 0 and admit_again(probes:sub(position, following - 1)) then seen = false end
-- plain ends
-- window begins
    if forgotten then
      admit_again(probes:sub(position, following - 1))
      seen = false
    end
-- window ends
-- ages begins
    if age and not fresh then
      remember(raw)
      seen = false
    end
-- ages ends
-- offer begins
    seen = admit(count + 1, seen)
-- offer ends
    count = count + 1
    answers[count] = seen and '1' or '0'
    position = following
  end
end
