-- Slices that come and go, a key at a time: a script that makes or frees many blocks all workers, as each key takes
-- some 3 ms. It is prepended to all scripts, after _common.lua; upkeep.lua makes and frees keys.
--
-- A slice is used once it has all its keys. The header's `coming` says which one gets them, if it has not all: the
-- newest one, or the one that is to follow it. Its `going` says which keys are to be freed. So whatever happens
-- between two keys, they are named there.

-- Return the slice that gets its keys or has just got them, and how many it has; nil if there is none.
local function read_coming(epoch)
  local row, made = unpack(call('HMGET', header, 'coming', 'coming_keys'))
  if row then return read_slices(row .. ':0:0:0', epoch)[1], tonumber(made) end
end

-- Let a slice get its keys: GEOMETRY:NUMBER.
local function await(slice) call('HSET', header, 'coming', slice, 'coming_keys', 0) end

-- Let slices go: also the one that is to follow them, if that is among them.
local function drop(slices)
  local rows = {call('HGET', header, 'going') or ''}
  for _, slice in ipairs(slices) do
    call('UNLINK', slice.name .. 'again', slice.name .. 'ages')  -- Redis frees these in the background
    rows[#rows + 1] = string.format('%s%d', slice.name:sub(#base + 1), slice.keys)
  end
  call('HSET', header, 'going', table.concat(rows, ' '))
end

-- Let all slices go.
local function drop_all(slices, epoch)
  local coming = read_coming(epoch)
  if coming and coming.number > slices[#slices].number then slices[#slices + 1] = coming end
  drop(slices)
end
