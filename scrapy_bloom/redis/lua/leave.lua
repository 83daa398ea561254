-- Deregister a worker, and put back what it has taken. May be repeated.
--
-- ARGV[1]  epoch   ARGV[2]  worker   ARGV[3]  ids of what it has taken   ARGV[4]  those whose turns were not used, the
--          latest first   ARGV[5]  "1" if all that start() yields is stored, or was
-- Answers {"ok"}; {"gone"} or {"deleted"} as call.lua
local epoch, worker, ids, unused, through = unpack(ARGV)
local fields = call('HMGET', header, 'epoch', 'slices', 'deleted')
if fields[1] ~= epoch then return other_epoch(epoch, fields[3]) end
if start_over_if_vanished(read_slices(fields[2], epoch)) then return {'gone'} end
free_turns(worker, unused)
for at = 1, #ids, 8 do put_back(worker .. ids:sub(at, at + 7), 0, 0) end
call('HDEL', header, 'w:' .. worker, 'a:' .. worker)
if through == '1' then call('HSET', header, 'through', through) end
count()
return {'ok'}
