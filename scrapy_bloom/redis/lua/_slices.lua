-- Part of add.lua and ask.lua: finds items in the slices that `text` lists. It stands where they say
-- "slices", and is a template like them. What is between "rest begins" and "rest ends" is left out
-- where the first look takes all positions of a probe.
local BLOCKS = @segment_blocks
local call, read, floor = redis.call, struct.unpack, math.floor
local slices = {}
local function know(capacity, blocks)
  slices[#slices + 1] = {capacity = tonumber(capacity), blocks = tonumber(blocks), segments = {}}
end
for capacity, blocks in text:gmatch('(%d+):[^: ]+:(%d+)') do know(capacity, blocks) end

-- Where a probe's bits are in a slice: the segment, and the offset of the block in it.
local function place(index, h)
  local slice = slices[index]
  local all = slice.blocks
  -- floor(h * all / 2^32), in parts, because doubles are exact only up to 2^53.
  local high = floor(h / 65536)
  local low = h - high * 65536
  local block = floor((high * all + floor(low * all / 65536)) / 65536)
  local number = floor(block / BLOCKS)
  local segment = slice.segments[number]
  if not segment then
    local first = number * BLOCKS
    local name = (index - 1) .. '.' .. number
    local mark = string.format('%d', math.min(BLOCKS, all - first) * 65536)
    segment = {name = name, key = KEYS[2] .. name, first = first, mark = mark}
    slice.segments[number] = segment
  end
  return segment, (block - segment.first) * 65536
end

local function all_set(bits)
  for i = 2, #bits do
    if bits[i] == 0 then return false end
  end
  return true
end

-- Whether all bits of a probe are set, nil if the segment is not there; and the segment.
-- Few bits first: they end most searches in a slice that does not have the item. Offsets are made
-- texts all at once: of numbers Redis makes texts by itself, one by one and slowly.
local function has(index, @probe)
  local segment, base = place(index, h)
  local @few = read(@few_texts, string.format(@few_numbers, @few_offsets))
  local bits = call('BITFIELD_RO', segment.key, 'GET', 'u1', segment.mark, @get_few)
  if bits[1] == 0 then return nil, segment end
  if not all_set(bits) then return false, segment end
-- rest begins
  local @rest = read(@rest_texts, string.format(@rest_numbers, @rest_offsets))
  bits = call('BITFIELD_RO', segment.key, 'GET', 'u1', segment.mark, @get_rest)
  if not all_set(bits) then return false, segment end
-- rest ends
  return true, segment
end
