-- The layout "sets": an item is a number in one of many buckets. A bucket is a set of at most 512 numbers,
-- which Redis keeps as a sorted array. bitmap.lua lists what a layout defines.
--
-- Numbers are signed and have 32 bits: Redis would keep larger ones in eight bytes. In slices whose error rate
-- is too low for that, they have 63.
local PROBE_BYTES = 16
local floor, format, read = math.floor, string.format, struct.unpack
local high, low, code, more

local function aim(probes, at)
  high, low, code, more = read('>HHi4I4', probes, at)
end

-- The key of the item's bucket, and the item's number as text.
local function place(slice)
  local buckets = slice.blocks
  -- floor(h * buckets / 2^32), in parts, because doubles are exact only up to 2^53.
  local bucket = floor((high * buckets + floor(low * buckets / 65536)) / 65536)
  local key = slice.name .. format('%d', bucket)
  if slice.rate >= 2 ^ -32 then return key, format('%d', code) end
  -- 34 bits that are not 0, then 29 bits as nine digits: a double could not hold them all.
  local bits = floor(more / 536870912)
  local front = code * 4 + bits % 4
  if front >= 0 then front = front + 1 end
  return key, format('%d%09d', front, more - bits * 536870912)
end

local function has(slice)
  return call('SISMEMBER', place(slice)) == 1
end

local function put(slice)
  return call('SADD', place(slice)) == 0
end

local function trial(key)
  local numbers = {'SADD', key}
  for i = 0, 511 do numbers[#numbers + 1] = format('%d', i) end
  return {
    numbers,
    {'OBJECT', 'ENCODING', key, answers = 'intset'},
    {'SISMEMBER', key, '1'},
    {'SREM', key, '1'},
    {'SCARD', key},
  }
end
