-- Delete filter and requests, unless another worker has a lease. A note of the epoch stays for a day: a worker
-- that wakes up later ends, and creates nothing.
--
-- ARGV[1]  worker that asks; empty if it is none   ARGV[2]  seconds of a lease
-- Answers {"ok", how many keys are left: call again until there are none}
--     or  {"used", worker, seconds that its lease has left}
-- May be repeated.
local epoch, deleted, slices = unpack(call('HMGET', header, 'epoch', 'deleted', 'slices'))
if epoch then
  for _, field in ipairs(call('HKEYS', header)) do
    local name = field:match('^w:(.*)$')
    local lives = name and name ~= ARGV[1] and tonumber(call('HGET', header, field):match('^%d+ ([%d.]+)$'))
    if lives and lives > now and lives <= now + 2 * ARGV[2] then
      return {'used', name, string.format('%.1f', lives - now)}
    end
  end
  drop(read_slices(slices, epoch))
  local dropped = call('HGET', header, 'dropped')
  local note = epoch
  for word in (deleted or ''):gmatch('%S+') do
    if #note < 400 then note = note .. ' ' .. word end
  end
  call('UNLINK', header, queue, taken, failed)
  call('HSET', header, 'program', 'scrapy-bloom', 'deleted', note, 'dropped', dropped)
  call('EXPIRE', header, 86400)
end
return {'ok', delete_dropped()}
