-- A heartbeat. Once a second, across all workers, it also puts back into the queue what dead workers had
-- taken: a fixed number of requests each time, found afresh, so that there is no cursor for a failover to lose.
--
-- ARGV[1]  epoch   ARGV[2]  worker   ARGV[3]  seconds of the lease   ARGV[4]  after how many tries a request is moved to the failed list
-- Answers {"ok", how many were put back, how many were moved to the failed list, the count of forgotten pages}; {"gone"}, {"deleted"} or {"dead"} as call.lua
--
-- A worker is dead if it has no lease although heartbeats have come for a whole lease without a gap. So after
-- the server has stood still, or its clock was changed, every worker gets another lease.
local SWEEP, PORTION, DAY = 1, 500, 86400
local BACK = 1  -- seconds: a clock that seems to go back by less was rounded
local epoch, worker, lease, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local found = call('HMGET', header, 'epoch', 'w:' .. worker, 'well', 'deleted', 'slices', 'forgotten')
if found[1] ~= epoch then return other_epoch(epoch, found[4]) end
if vanished(read_slices(found[5], epoch)) then return {'gone'} end
local number, ends = (found[2] or ''):match('^(%d+) ([%d.]+)$')
if found[2] and not number then return {'dead'} end -- what it had is put back: its next call finds out
if number then call('HSET', header, 'w:' .. worker, string.format('%s %.3f', number, now + lease)) end

local since, last = read_numbers(found[3])
if last - now > BACK or now - last > lease / 3 then
  since = now
elseif now - last < SWEEP then
  return {'ok', 0, 0, found[6]}
end
call('HSET', header, 'well', string.format('%.3f %.3f', since, now))
local patient = now - since > lease

local dead = {}
local function is_dead(name)
  if dead[name] == nil then
    local record = call('HGET', header, 'w:' .. name)
    local last_call, lives = (record or ''):match('^(%d+) (%S+)')
    dead[name] = lives == 'dead'
    if patient and not dead[name] then
      dead[name] = not lives or tonumber(lives) < now or tonumber(lives) > now + 2 * lease
      if lives and dead[name] then
        call('HSET', header, 'w:' .. name, string.format('%s dead %.0f', last_call, now))
        call('HDEL', header, 'a:' .. name)
      end
    end
  end
  return dead[name]
end

for _, field in ipairs(call('HKEYS', header)) do
  if field:sub(1, 2) == 'w:' and is_dead(field:sub(3)) then
    local died = call('HGET', header, field):match('dead (%d+)')
    if now - died > DAY then call('HDEL', header, field) end
  end
end
local places, left = {queue = 0, failed = 0}, PORTION
for _, field in ipairs(call('HKEYS', taken)) do
  if left > 0 and is_dead(field:sub(1, -9)) then
    local place = put_back(field, 1, most)
    places[place], left = places[place] + 1, left - 1
  end
end
if left < PORTION then count() end
delete_dropped()
return {'ok', places.queue, places.failed, found[6]}
