-- Delete filter and requests, unless a worker has a lease. upkeep.lua then frees the slices, and the header last.
--
-- ARGV[1]  the workers whose leases do not count, with a space before and after each
-- ARGV[2]  seconds of a lease
-- ARGV[3]  "1" to remember the epoch for a day: workers that use it then end, and create nothing.
--          Else "0": they continue with what is there
-- Answers {"ok"}
--     or  {"used", worker, seconds left of its lease, ...}
-- May be repeated.
local epoch, deleted, slices = unpack(call('HMGET', header, 'epoch', 'deleted', 'slices'))
if epoch then
  local used = {'used'}
  for name, worker in pairs(read_workers()) do
    if is_valid(worker.expires, ARGV[2]) and not ARGV[1]:find(' ' .. name .. ' ', 1, true) then
      used[#used + 1], used[#used + 2] = name, string.format('%.3f', worker.expires - now)
    end
  end
  if #used > 1 then return used end
  drop_all(read_slices(slices, epoch), epoch)
  call('UNLINK', queue, later, turns, frees, paused, delays, taken, failed, dates, unparsed, led, failed_ways, bodies,
    reasons, decisions, starts)
  for _, field in ipairs(call('HKEYS', header)) do
    if field ~= 'going' and field ~= 'program' then call('HDEL', header, field) end
  end
  local deleted_epoch = ARGV[3] == '1' and epoch or deleted
  if deleted_epoch then call('HSET', header, 'deleted', deleted_epoch) end
end
return {'ok'}
