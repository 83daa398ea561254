-- A heartbeat, for a worker that has nothing else to say.
--
-- ARGV[1]  epoch   ARGV[2]  worker   ARGV[3]  seconds of the lease   ARGV[4]  `most`, as in call.lua
-- ARGV[5]  "1" to give up the lease instead: a request blocks the worker
-- Answers {"ok", how many requests of dead workers were put back, how many others went to the failed list, the count
--          of forgotten pages}; {"gone"}, {"deleted"} or {"dead"} as call.lua
local epoch, worker, lease, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local fields = call('HMGET', header, 'epoch', 'w:' .. worker, 'slices', 'forgotten', 'deleted', 'well')
if fields[1] ~= epoch then return other_epoch(epoch, fields[5]) end
if start_over_if_vanished(read_slices(fields[3], epoch)) then return {'gone'} end
local number, ends, delay = read_worker(fields[2])
if ends == 'dead' then return {'dead'} end  -- what it had is put back: its next call finds out
local well, since = read_clock(fields[6], lease)
if number and ARGV[5] == '1' then
  call('HSET', header, 'w:' .. worker, string.format('%.0f dead %.0f blocked', number, now), 'well', well)
  call('HDEL', header, 'a:' .. worker)
elseif number then
  write_worker(worker, number, now + lease, delay or 0, well)
else
  call('HSET', header, 'well', well)
end
local queued, failed_now = 0, 0
if since then queued, failed_now = sweep(since, lease, most) end
return {'ok', queued, failed_now, fields[4]}
