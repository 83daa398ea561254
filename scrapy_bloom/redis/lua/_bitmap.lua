-- The layout "bitmap": the bits of an item lie in one block, and a key holds a segment of many blocks.
-- Stands where scripts say "layout", and is a template like them. What is between "rest begins" and
-- "rest ends" is left out where the first look takes all positions of a probe.
--
-- A layout defines what is used here, and does nothing by itself:
--     slices                     the slices that are known, oldest first, each with its capacity
--     know(capacity, rate, size, number)
--                                adds one, from the words by which the header lists it; without a number
--                                it has that of its place, from 0
--     has(index, probe)          whether a slice has an item; nil if what would tell it is not there
--     missed(index, probe)       takes down that `has` found nothing that could tell
--     put(index, probe)          adds an item to a slice; whether it was there
--     look(turn)                 takes down which parts of the filter are not there; `turn` counts looks
--     lost                       how many parts were found lost in this call
--     trial(key)                 the commands that the layout needs, to be tried on a key; also what
--                                one must answer, and what to say if it answers otherwise
--     take_out(raw, fingerprint, probe)
--                                makes an item new once more; how often it was there. `raw` are the
--                                bytes of the probe.
--     is_again(raw)              whether an item is on the list of those that are new once more. Asked
--                                only if `listed`, how many there are, is not 0.
--     admit_again(raw)           takes an item off that list; whether it was there. Likewise.
--
-- Bits are also those of others, so an item is forgotten by a list: a hash from the bytes of its
-- probe to its fingerprint. The field "again" of the header tells how many there are, so that
-- without any nothing is looked up.
local SEGMENT_BLOCKS = @segment_blocks
local call, read, floor = redis.call, struct.unpack, math.floor
local slices, lost = {}, 0
local list = KEYS[2] .. 'again'  -- of what is new once more

local function know(capacity, _, blocks, number)
  slices[#slices + 1] = {
    capacity = tonumber(capacity),
    blocks = tonumber(blocks),
    number = number or #slices,
    segments = {},
  }
end

-- Where a probe's bits are in a slice: the segment, and the offset of the block in it.
local function place(index, h)
  local slice = slices[index]
  local all = slice.blocks
  -- floor(h * all / 2^32), in parts, because doubles are exact only up to 2^53.
  local high = floor(h / 65536)
  local low = h - high * 65536
  local block = floor((high * all + floor(low * all / 65536)) / 65536)
  local number = floor(block / SEGMENT_BLOCKS)
  local segment = slice.segments[number]
  if not segment then
    local first = number * SEGMENT_BLOCKS
    local name = slice.number .. '.' .. number
    local mark = string.format('%d', math.min(SEGMENT_BLOCKS, all - first) * 65536)
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

-- Few bits first: they end most searches in a slice that does not have the item. Offsets are made
-- texts all at once: of numbers Redis makes texts by itself, one by one and slowly.
local function has(index, @probe)
  local segment, base = place(index, h)
  local @few = read(@few_texts, string.format(@few_numbers, @few_offsets))
  local bits = call('BITFIELD_RO', segment.key, 'GET', 'u1', segment.mark, @get_few)
  if bits[1] == 0 then return nil end
  if not all_set(bits) then return false end
-- rest begins
  local @rest = read(@rest_texts, string.format(@rest_numbers, @rest_offsets))
  bits = call('BITFIELD_RO', segment.key, 'GET', 'u1', segment.mark, @get_rest)
  if not all_set(bits) then return false end
-- rest ends
  return true
end

local function lose(name)
  if call('HDEL', KEYS[1], 'm:' .. name) == 1 then lost = lost + 1 end
end

local function missed(index, @probe)
  lose(place(index, h).name)
end

local function put(index, @probe)
  local segment, base = place(index, h)
  local @all = read(@all_texts, string.format(@all_numbers, @all_offsets))
  local before = call('BITFIELD', segment.key, 'GET', 'u1', segment.mark, @set_all)
  if before[1] == 1 then return all_set(before) end
  -- The segment that this command has made is too short: make it again at its full size, which
  -- never grows.
  lose(segment.name)
  call('UNLINK', segment.key)
  call('SETBIT', segment.key, segment.mark, '1')
  call('HSET', KEYS[1], 'm:' .. segment.name, '1')
  call('BITFIELD', segment.key, @set_all)
  return false
end

local function set_listed(count)
  listed = count
  if count > 0 then call('HSET', KEYS[1], 'again', count) else call('HDEL', KEYS[1], 'again') end
end

local function is_again(raw)
  return call('HEXISTS', list, raw) == 1
end

local function admit_again(raw)
  if call('HDEL', list, raw) == 1 then
    set_listed(listed - 1)
    return true
  end
  if call('EXISTS', list) == 0 then
    lost = lost + 1
    set_listed(0)
  end
  return false
end

local function take_out(raw, fingerprint, @probe)
  if listed > 0 and is_again(raw) then return 0 end
  for index = #slices, oldest, -1 do
    if has(index, @probe) then
      call('HSET', list, raw, fingerprint)
      set_listed(listed + 1)
      return 1
    end
  end
  return 0
end

local function look(_)
  local fields = call('HKEYS', KEYS[1])
  for i = 1, #fields do
    local name = fields[i]:match('^m:(.*)$')
    if name and call('EXISTS', KEYS[2] .. name) == 0 then lose(name) end
  end
end

local function trial(key)
  return {
    {'SETBIT', key, '0', '1'},
    {'BITFIELD', key, 'SET', 'u1', '0', '1'},
    {'BITFIELD_RO', key, 'GET', 'u1', '0'},
    {'BITCOUNT', key},
  }
end
