-- Deregister a worker, and put back what it has taken. May be repeated.
--
-- ARGV[1]  epoch   ARGV[2]  worker   ARGV[3]  ids of what it has taken, the latest turn first
-- Answers {"ok", WAITING TAKEN FAILED DONE REDIRECTED, reasons, statuses}: two lists of names and counts; {"gone"} or {"deleted"} as call.lua
local epoch, worker, ids = ARGV[1], ARGV[2], ARGV[3]
local fields = call('HMGET', header, 'epoch', 'slices', 'deleted')
if fields[1] ~= epoch then return other_epoch(epoch, fields[3]) end
if start_over_if_vanished(read_slices(fields[2], epoch)) then return {'gone'} end
for at = 1, #ids, 8 do put_back(worker .. ids:sub(at, at + 7), 0, 0) end
call('HDEL', header, 'w:' .. worker, 'a:' .. worker)
local waiting, in_flight, failures = count()
local done, redirected = unpack(call('HMGET', header, 'done', 'redirected'))
local text = string.format('%d %d %d %s %s', waiting, in_flight, failures, done or '0', redirected or '0')
local function pairs_of(key)
  local names = call('HKEYS', key)
  local counts = #names > 0 and call('HMGET', key, unpack(names)) or {}
  for i = #names, 1, -1 do table.insert(names, i + 1, counts[i]) end
  return names
end
return {'ok', text, pairs_of(reasons), pairs_of(statuses)}
