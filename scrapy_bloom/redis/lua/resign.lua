-- Give up a lease: a callback blocks the worker, and may do so for ever.
--
-- ARGV[1]  a map in MessagePack: epoch and worker; failures and most_unparsed as in call.lua, of the page that
--          blocks it, or none if that is unknown
-- Answers {"ok"}; {"gone"}, {"deleted"}, {"dead"} or {"broken", error} as call.lua
local sent = cmsgpack.unpack(ARGV[1])
local record = 'w:' .. sent.worker
local fields = read_header('epoch', record, 'slices', 'window', 'forgotten', 'deleted', 'done', 'not_kept')
if fields.epoch ~= sent.epoch then return other_epoch(sent.epoch, fields.deleted) end
read_marks(fields.slices, sent.epoch, fields.window, fields.forgotten)
if start_over_if_vanished(slices) then return {'gone'} end
local number, expires = read_worker(fields[record])
if not number or expires == 'dead' then return {'dead'} end
counters.done, counters.not_kept = tonumber(fields.done or 0), tonumber(fields.not_kept or 0)

local function carry_out()
  local ways = record_failed(sent.worker, sent.failures, sent.most_unparsed)
  if #ways > 0 and #slices > 0 then
    if #over > 0 then drop(over) end
    judge(string.rep('x', #ways / PROBE_BYTES), ways, {})
    call('HSET', header, 'slices', write_slices(slices), 'forgotten', format('%.0f', forgotten))
  end
  count('done', counters.done, 'not_kept', counters.not_kept)
end

-- A server that is full or read-only refuses this first write, and then nothing has changed.
local why = #sent.failures > 0 and 'named' or 'blocked'
call('HSET', header, record, format('%.0f dead %.0f %s', number, now, why))
call('HDEL', header, 'a:' .. sent.worker)
return as_a_whole(carry_out, function() return {'ok'} end)
