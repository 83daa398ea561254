-- Deregister a worker, and put back what it has taken. May be repeated.
--
-- ARGV[1]  epoch   ARGV[2]  worker
-- Answers {"ok"}; {"gone"} or {"deleted"} as call.lua
local epoch, worker = ARGV[1], ARGV[2]
local found = call('HMGET', header, 'epoch', 'slices', 'deleted')
if found[1] ~= epoch then return other_epoch(epoch, found[3]) end
if vanished(read_slices(found[2], epoch)) then return {'gone'} end
local changed = false
for _, field in ipairs(call('HKEYS', taken)) do
  if field:sub(1, -9) == worker then
    put_back(field, 0, 0)
    changed = true
  end
end
call('HDEL', header, 'w:' .. worker, 'a:' .. worker)
if changed then count() end
return {'ok'}
