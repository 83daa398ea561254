-- The bits of a filter. It is prepended to the scripts that read or set them, after _common.lua.
--
-- The 14 bits of an item lie in one block of 64 Kbit, and a key holds up to 511 blocks. They are those of a
-- local filter. The bit after a key's blocks gives it its full size.
--
--   PROBE_BYTES         the size of a probe
--   is_in_any(slices, item, last, since)
--                       whether any slice has it: of those up to `last` that began since a time, if these are given
--   put(slice, item)    adds it to a slice; returns whether its bits were there
--
-- Variables instead of tables, which would take a fifth more of the server's time, and local ones instead of
-- shared ones; and numbers formatted all at once, because Redis formats them one by one, slowly.
local PROBE_BYTES, KEY_BLOCKS = 32, 511
local floor, format, read = math.floor, string.format, struct.unpack

-- A key of a slice: its first block, and the bit that gives it its full size.
local function segment_of(slice, number)
  local segment = slice.segments[number]
  if not segment then
    local first = number * KEY_BLOCKS
    local size = math.min(KEY_BLOCKS, slice.blocks - first) * 65536
    segment = {key = slice.name .. format('%d', number), first = first, last = format('%d', size)}
    slice.segments[number] = segment
  end
  return segment
end

-- Where the item's block is in a slice: its segment, which is one key, and the first bit of the block in it. The
-- last number of the probe, h, is given in two halves.
local function place(slice, high, low)
  local blocks = slice.blocks
  -- floor(h * blocks / 2^32), in parts, because doubles are exact only up to 2^53.
  local block = floor((high * blocks + floor(low * blocks / 65536)) / 65536)
  local number = floor(block / KEY_BLOCKS)
  local segment = slice.segments[number] or segment_of(slice, number)
  return segment, (block - segment.first) * 65536
end

local function all_set(bits)
  for i = 1, #bits do
    if bits[i] == 0 then return false end
  end
  return true
end

-- Four bits first: they end most searches in a slice that does not have the item.
local function has(slice, item)
  local segment, base = place(slice, read('>HH', item, 29))
  local p1, p2, p3, p4 = read('>HHHH', item)
  local t1, t2, t3, t4 = read('ssss',
    format('%d\0%d\0%d\0%d\0', base + p1, base + p2, base + p3, base + p4))
  local bits = call('BITFIELD_RO', segment.key,
    'GET', 'u1', t1, 'GET', 'u1', t2, 'GET', 'u1', t3, 'GET', 'u1', t4)
  if not all_set(bits) then return false end
  local p5, p6, p7, p8, p9, p10, p11, p12, p13, p14 = read('>HHHHHHHHHH', item, 9)
  local t5, t6, t7, t8, t9, t10, t11, t12, t13, t14 = read('ssssssssss',
    format('%d\0%d\0%d\0%d\0%d\0%d\0%d\0%d\0%d\0%d\0',
      base + p5, base + p6, base + p7, base + p8, base + p9, base + p10, base + p11, base + p12,
      base + p13, base + p14))
  return all_set(call('BITFIELD_RO', segment.key,
    'GET', 'u1', t5, 'GET', 'u1', t6, 'GET', 'u1', t7, 'GET', 'u1', t8, 'GET', 'u1', t9,
    'GET', 'u1', t10, 'GET', 'u1', t11, 'GET', 'u1', t12, 'GET', 'u1', t13, 'GET', 'u1', t14))
end

-- Whether a slice has an item that was not forgotten.
local function is_in(slice, item)
  return has(slice, item) and (slice.again == 0 or call('SISMEMBER', slice.name .. 'again', item) == 0)
end

local function is_in_any(slices, item, last, since)
  for i = last or #slices, 1, -1 do
    if (not since or slices[i].since >= since) and is_in(slices[i], item) then return true end
  end
  return false
end

local function put(slice, item)
  local p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, high, low =
    read('>HHHHHHHHHHHHHHHH', item)
  local segment, base = place(slice, high, low)
  local t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14 =
    read('ssssssssssssss', format('%d\0%d\0%d\0%d\0%d\0%d\0%d\0%d\0%d\0%d\0%d\0%d\0%d\0%d\0',
      base + p1, base + p2, base + p3, base + p4, base + p5, base + p6, base + p7, base + p8, base + p9,
      base + p10, base + p11, base + p12, base + p13, base + p14))
  -- The last bit gives the key its full size at once: strings that grow take more memory than they need.
  local bits = call('BITFIELD', segment.key, 'SET', 'u1', segment.last, '1',
    'SET', 'u1', t1, '1', 'SET', 'u1', t2, '1', 'SET', 'u1', t3, '1', 'SET', 'u1', t4, '1',
    'SET', 'u1', t5, '1', 'SET', 'u1', t6, '1', 'SET', 'u1', t7, '1', 'SET', 'u1', t8, '1',
    'SET', 'u1', t9, '1', 'SET', 'u1', t10, '1', 'SET', 'u1', t11, '1', 'SET', 'u1', t12, '1',
    'SET', 'u1', t13, '1', 'SET', 'u1', t14, '1')
  bits[1] = 1
  return all_set(bits)
end
