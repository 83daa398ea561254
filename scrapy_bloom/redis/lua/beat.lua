-- A heartbeat, for a worker that has nothing else to say.
--
-- ARGV[1]  epoch   ARGV[2]  worker   ARGV[3]  seconds of the lease   ARGV[4]  `most`, as in call.lua
-- Answers {"ok", how many requests of dead workers were put back, how many others were given up, the count of
--          forgotten pages}; {"gone"}, {"deleted"} or {"dead"} as call.lua
local epoch, worker, lease, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local record = 'w:' .. worker
local fields = read_header('epoch', record, 'slices', 'forgotten', 'deleted', 'contact_since', 'last_contact',
  'swept', 'skew')
if fields.epoch ~= epoch then return other_epoch(epoch, fields.deleted) end
if start_over_if_vanished(read_slices(fields.slices, epoch)) then return {'gone'} end
local number, expires, delay = read_worker(fields[record])
if expires == 'dead' then return {'dead'} end  -- what it had is put back: its next call finds out
local changed, since = read_clock(fields.contact_since, fields.last_contact, fields.swept, fields.skew, lease)
if number then
  write_worker(worker, number, now + lease, delay, changed)
else
  call('HSET', header, unpack(changed))
end
local queued, given_up = 0, 0
if since then queued, given_up = sweep(since, lease, most) end
return {'ok', queued, given_up, fields.forgotten}
