-- Part of _slices.lua for a filter whose slices have dates: reads them, and leaves out what is too old.
-- The header lists a slice as CAPACITY:RATE:SIZE:NUMBER:DATE:ITEMS. NUMBER is in the names of its keys.
-- DATE is when its generation began, in seconds since 1970: slices of one date are one generation. The
-- field "dropped" lists NUMBER:KEYS of slices whose keys are still to be deleted.
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local window, dropped = (table.unpack or unpack)(redis.call('HMGET', KEYS[1], 'window', 'dropped'))
window, dropped = tonumber(window), dropped or ''
local PARTS = 8
local life = window + window / PARTS
local rows, due = {}, false
for word in text:gmatch('%S+') do
  local row = {word:match('^(%d+):([^:]+):(%d+):(%d+):([%d.]+):(%d+)$')}
  -- If the clock went back, what seems to come from the future counts as of now.
  if tonumber(row[5]) > now then row[5] = string.format('%.6f', now) end
  rows[#rows + 1] = row
end
while #rows > 1 and rows[1][5] + life <= now do
  local row = table.remove(rows, 1)
  dropped = dropped .. row[4] .. ':' .. math.ceil(row[3] / @blocks_per_key) .. ' '
end

-- Where the newest generation begins; behind all slices if it takes no more items.
local function generation()
  local index = #rows
  if due then return index + 1 end
  while index > 1 and rows[index - 1][5] == rows[#rows][5] do index = index - 1 end
  return index
end

if now >= rows[#rows][5] + window / PARTS then
  local begin, count = generation(), 1
  for i = 2, #rows do
    if rows[i][5] ~= rows[i - 1][5] then count = count + 1 end
  end
  if (begin == #rows and rows[begin][6] == '0') or count > PARTS then
    -- It is empty; or there are so many because the clock went back, and none may be dropped.
    for i = begin, #rows do rows[i][5] = string.format('%.6f', now) end
  else
    due = true
    if rows[#rows][5] + life <= now then oldest = #rows + 1 end
  end
end
for i = 1, #rows do know(rows[i][1], rows[i][2], rows[i][3], rows[i][4]) end

-- The number of the next slice.
local function next_number() return rows[#rows][4] + 1 end

-- Add a slice that a worker names: to a new generation if one is due, else to the newest one.
local function add_slice(spec)
  local last = rows[#rows]
  local capacity, rate, size = spec:match('^(%d+):([^: ]+):(%d+)$')
  local number = string.format('%d', next_number())
  last[6] = string.format('%d', filled)
  rows[#rows + 1] = {capacity, rate, size, number, due and string.format('%.6f', now) or last[5], '0'}
  due = false
  know(capacity, rate, size, number)
end

-- Delete some keys of slices that were dropped: few at a time, so that the server never stands still.
local function delete_dropped()
  local number, left, rest = dropped:match('^(%d+):(%d+) (.*)$')
  if not number then return end
  left = tonumber(left)
  local names, fields = {KEYS[2] .. number .. '.ages'}, {}
  while left > 0 and #fields < @per_call do
    left = left - 1
    names[#names + 1] = KEYS[2] .. number .. '.' .. left
    fields[#fields + 1] = 'm:' .. number .. '.' .. left
  end
  redis.call('UNLINK', (table.unpack or unpack)(names))
  if #fields > 0 then redis.call('HDEL', KEYS[1], (table.unpack or unpack)(fields)) end
  dropped = left > 0 and number .. ':' .. left .. ' ' .. rest or rest
end

-- Put into `text` what the header is to list, and see to what was dropped.
local function keep()
  rows[#rows][6] = string.format('%d', filled)
  local words = {}
  for i = 1, #rows do words[i] = table.concat(rows[i], ':') end
  text = table.concat(words, ' ')
  if dropped ~= '' then
    delete_dropped()
    redis.call('HSET', KEYS[1], 'dropped', dropped)
  end
end

-- In how many seconds something is too old next: until then a worker may remember what it knows.
local function lasts()
  local first = rows[oldest] and rows[oldest][5] or now
  return string.format(' %.6f', math.max(0, first + life - now))
end
