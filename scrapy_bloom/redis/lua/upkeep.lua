-- One step of what nobody should have to wait for: make a key of the slice that needs keys, and free a few of those
-- that are to go.
--
-- ARGV[1]  epoch   ARGV[2]  the slice that is to follow the newest one, GEOMETRY:NUMBER; empty if it need not be sent
-- Answers {"ok", how many keys are left to make, how many to free, slices, kind}: the kind of the slice that will be
--            needed soon, as in grow(), and that nobody has sent yet; else empty
-- May be repeated. Of another epoch nothing is made.
local FREED, SOON = 3, 0.98
local epoch, following = ARGV[1], ARGV[2]
local program, found, text, seconds, deleted, going =
  unpack(call('HMGET', header, 'program', 'epoch', 'slices', 'window', 'deleted', 'going'))

-- Free the last keys of the first slice that is to go; return how many keys are left.
local function free()
  local name, keys, others = going:match('^ *(%S+%.)(%d+)(.*)$')
  local names, left = {}, math.max(0, keys - FREED)
  for number = left, keys - 1 do names[#names + 1] = base .. name .. format('%d', number) end
  call('UNLINK', unpack(names))
  if left > 0 then others = format('%s%d', name, left) .. others end
  call('HSET', header, 'going', others)
  left = 0
  for number in others:gmatch('%.(%d+)%f[%s%z]') do left = left + number end
  if left > 0 then return left end
  call('HDEL', header, 'going')
  if not found and deleted then call('EXPIRE', header, 86400) end
  if not found and not deleted then call('UNLINK', header) end
  return 0
end

local to_free = program and going and free() or 0
if not found or found ~= epoch then return {'ok', 0, to_free, '', ''} end

local slices = read_slices(text, epoch)
local newest, window = slices[#slices], tonumber(seconds)
local coming, made = read_coming(epoch)
local is_known = coming and coming.number == newest.number + 1
if following ~= '' and not is_known and following:match(':(%d+)$') == format('%d', newest.number + 1) then
  await(following)
  coming, made = read_coming(epoch)
  is_known = true
end
local kind = ''
if not is_known then
  local due = window > 0 and math.min(now, newest.since) + SOON * window / 8 <= now
  kind = due and newest.items > 0 and 'due' or newest.items >= SOON * newest.capacity and 'full' or ''
end
local lacks = coming and (is_known or coming.number == newest.number) and made < coming.keys
if not lacks then return {'ok', 0, to_free, text, kind} end
local key = segment_of(coming, made)
call('BITFIELD', key.key, 'SET', 'u1', key.last, '1')
call('HSET', header, 'coming_keys', made + 1)
return {'ok', coming.keys - made - 1, to_free, text, kind}
