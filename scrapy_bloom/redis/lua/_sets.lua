-- The layout "sets": the hash of an item is a number and a bucket, and a bucket is a set of numbers.
-- Redis keeps small sets of numbers as sorted arrays. Stands where scripts say "layout", and is a
-- template like them; _bitmap.lua says what a layout defines.
--
-- Every bucket has the number 0, as its sign of life. The first SADD of a bucket adds two numbers.
-- Whether that is its first use or it was lost is told by a bit of the header: a field m:i.j has
-- those of CHUNK buckets of slice i.
local CHUNK = 1024
local BITS = {1, 2, 4, 8, 16, 32, 64, 128}
local call, read, floor, format = redis.call, struct.unpack, math.floor, string.format
local slices, lost = {}, 0

local function know(capacity, rate, size, number)
  number = number or #slices
  slices[#slices + 1] = {
    capacity = tonumber(capacity),
    size = tonumber(size),
    number = number,
    start = KEYS[2] .. number .. '.',
    -- Numbers of 32 bits cannot have a lower rate than that of one item in each bucket.
    wide = tonumber(rate) < 2 ^ -32,
  }
end

-- The key of an item's bucket, the item's number as text, and the bucket.
local function place(index, @probe)
  local slice = slices[index]
  local size = slice.size
  -- floor(h * size / 2^32), in parts, because doubles are exact only up to 2^53.
  local bucket = floor((high * size + floor(low * size / 65536)) / 65536)
  local key = slice.start .. format('%d', bucket)
  if not slice.wide then return key, format('%d', code == 0 and 1 or code), bucket end
  -- 34 bits that are not 0, then 29 bits as nine digits: a double could not hold them all.
  local bits = floor(more / 536870912)
  code = code * 4 + bits % 4
  if code >= 0 then code = code + 1 end
  return key, format('%d%09d', code, more - bits * 536870912), bucket
end

local function has(index, @probe)
  local key, number = place(index, @probe)
  local found = call('SMISMEMBER', key, '0', number)
  if found[2] == 1 then return true end
  if found[1] == 1 then return false end
  return nil
end

-- Write down whether a bucket is made; return what was written before.
local function note(index, bucket, made)
  local chunk = floor(bucket / CHUNK)
  local field = 'm:' .. slices[index].number .. '.' .. chunk
  local bits = call('HGET', KEYS[1], field) or string.rep('\0', CHUNK / 8)
  local offset = bucket - chunk * CHUNK
  local at = floor(offset / 8) + 1
  local byte, bit = bits:byte(at), BITS[offset % 8 + 1]
  local before = floor(byte / bit) % 2 == 1
  if before ~= made then
    byte = string.char(made and byte + bit or byte - bit)
    call('HSET', KEYS[1], field, bits:sub(1, at - 1) .. byte .. bits:sub(at + 1))
  end
  return before
end

local function missed(index, @probe)
  local _, _, bucket = place(index, @probe)
  if note(index, bucket, false) then lost = lost + 1 end
end

local function put(index, @probe)
  local key, number, bucket = place(index, @probe)
  local added = call('SADD', key, '0', number)
  if added == 0 then return true end
  if added == 2 and note(index, bucket, true) then lost = lost + 1 end
  return false
end

-- There may be many buckets, so each look is at one chunk, and the next look at the next one.
local function look(turn)
  local chunks = 0
  for i = 1, #slices do chunks = chunks + math.ceil(slices[i].size / CHUNK) end
  local chunk, index = turn % chunks, 1
  while chunk >= math.ceil(slices[index].size / CHUNK) do
    chunk = chunk - math.ceil(slices[index].size / CHUNK)
    index = index + 1
  end
  local bits = call('HGET', KEYS[1], 'm:' .. slices[index].number .. '.' .. chunk) or ''
  for at = 1, #bits do
    local byte = bits:byte(at)
    for i = 1, 8 do
      local bucket = chunk * CHUNK + (at - 1) * 8 + i - 1
      if floor(byte / BITS[i]) % 2 == 1 and call('EXISTS', slices[index].start .. bucket) == 0 then
        note(index, bucket, false)
        lost = lost + 1
      end
    end
  end
end

-- There is no list of what is new once more.
local function is_again() return false end
local admit_again = is_again

local function take_out(_, _, @probe)
  local count = 0
  for index = #slices, oldest, -1 do
    local key, number = place(index, @probe)
    count = count + call('SREM', key, number)
  end
  return count
end

local function trial(key)
  local numbers = {'SADD', key}
  for i = 0, @most_numbers - 1 do numbers[#numbers + 1] = format('%d', i) end
  return {
    numbers,
    {'OBJECT', 'ENCODING', key, answers = 'intset', otherwise = '@too_few'},
    {'SMISMEMBER', key, '0', '1'},
    {'SREM', key, '1'},
    {'SCARD', key},
  }
end
