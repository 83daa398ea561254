-- What a worker sends to a filter whose requests are kept elsewhere: marks. Otherwise it is as call.lua.
--
-- ARGV, in this order:
--   epoch, worker  who calls
--   numbers     three, as the first ones of call.lua
--   letters, probes, max_ages
--               as there; no entry is queued
--
-- Answers {"ok", report, digits, "", slices}, as call.lua if there are no requests
--     or  {"slices", ...}, {"dead"}, {"lost"}, {"gone"}, {"deleted"} or {"broken", error} as there
local epoch, worker, numbers, letters, probes, max_ages = unpack(ARGV)
local fields = call('HMGET', header, 'epoch', 'w:' .. worker, 'slices', 'window', 'forgotten', 'deleted')
if fields[1] ~= epoch then return other_epoch(epoch, fields[6]) end
local number, answered, lease = read_numbers(numbers)
local surprise, last = surprise_of(fields[2], number, answered)
if surprise then return {surprise} end

read_marks(fields[3], epoch, fields[4], fields[5])
local digits, text = nil, fields[3]
local function answer()
  return {'ok', format('0 0 0 %d 0 0 0 0 %s 0 -1 0 0 0 0 0 0', forgotten, seconds_left()), digits, '', text}
end
if number == last then
  digits = call('HGET', header, 'a:' .. worker):match('^%d*')
  return answer()
end
if again_vanished(slices) then
  start_over()
  return {'gone'}
end
local kind = grow(epoch)
if kind then return {'slices', fields[3], kind} end

local function carry_out()
  if #over > 0 then drop(over) end
  digits = judge(letters, probes, max_ages)
  text = write_slices(slices)
  call('HSET', header, 'a:' .. worker, digits .. ' ', 'slices', text)
  if letters:find('x', 1, true) then call('HSET', header, 'forgotten', format('%d', forgotten)) end
end

-- A server that is full or read-only refuses this first write, and then nothing has changed.
call('HSET', header, 'w:' .. worker, format('%d %.3f 0', number, now + lease))
local whole, problem = pcall(carry_out)
if whole then return answer() end
start_over()
return {'broken', type(problem) == 'table' and problem.err or tostring(problem)}
