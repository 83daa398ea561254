-- What a worker says to a filter whose requests are kept elsewhere: marks. Otherwise it is as call.lua.
--
-- ARGV[1]  a map in MessagePack: epoch, worker, number, answered, lease, ops, probes, ages. No entry is queued
--
-- Answers {"ok", report, digits, {}, slices}, as call.lua if there are no requests
--     or  {"slices", ...}, {"dead"}, {"lost"}, {"gone"}, {"deleted"} or {"broken", error} as there
local said = cmsgpack.unpack(ARGV[1])
local record, answers = 'w:' .. said.worker, 'a:' .. said.worker
local there = read_header('epoch', record, 'slices', 'window', 'forgotten', 'deleted')
if there.epoch ~= said.epoch then return other_epoch(said.epoch, there.deleted) end
local surprise, last = surprise_of(there[record], said.number, said.answered)
if surprise then return {surprise} end

read_marks(there.slices, said.epoch, there.window, there.forgotten)
local digits, text = nil, there.slices
local function answer()
  return {'ok', format('forgotten %d expires %s', forgotten, seconds_left()), digits, {}, text}
end
if said.number == last then
  digits = call('HGET', header, answers):match('^%d*')
  return answer()
end
if again_vanished(slices) then
  start_over()
  return {'gone'}
end
local kind = grow(said.epoch)
if kind then return {'slices', there.slices, kind} end

local function carry_out()
  if #over > 0 then drop(over) end
  digits = judge(said.ops, said.probes, said.ages)
  text = write_slices(slices)
  call('HSET', header, answers, digits .. ' ', 'slices', text)
  if said.ops:find('x', 1, true) then call('HSET', header, 'forgotten', format('%d', forgotten)) end
end

-- A server that is full or read-only refuses this first write, and then nothing has changed.
call('HSET', header, record, format('%d %.3f 0', said.number, now + said.lease))
return as_a_whole(carry_out, answer)
