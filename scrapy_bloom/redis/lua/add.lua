-- Add a batch of items, in one call of a worker, and say for each item whether it was there.
-- A template: names after an at-sign are filled in for the layout of the filter and the size of its
-- probes.
--
-- KEYS[1]  the header
-- KEYS[2]  what the names of the filter's segments begin with
-- ARGV[1]  signature of the filter
-- ARGV[2]  worker
-- ARGV[3]  four words: number of this call; number of the last call whose answer the worker has;
--          "1" to look for lost segments, else "0"; how many slices the worker knows of, "-" if it
--          names none to add
-- ARGV[4]  the probes of all items in one string
-- ARGV[5]  the slice to add when all are full, if the worker names one
--
-- Answers one string, because clients are slow to read many:
--     "ok LOSSES BACK DIGITS"           LOSSES: how often segments were lost. BACK: 1 if the server
--                                       has gone back to an older state, else 0. DIGITS: for each
--                                       item 1 if it was there, else 0.
--     "full LOSSES BACK DIGITS SLICES"  the items that have no digit need a slice that the worker
--                                       must name. SLICES: all slices that there are.
--     "broken LOSSES BACK DIGITS ERROR" an error ended the call: the items that have no digit are not
--                                       marked, but for the first of them, which may be.
--     "stale"                           a later call of this worker was answered before
--     "stranger"                        the worker is not registered
--     "other"                           the filter is not there
-- A call that was answered before gets the same answer and changes nothing.
local number, answered, look_for_losses, known = ARGV[3]:match('(%d+) (%d+) (%d) (%S+)')
number, answered, known = tonumber(number), tonumber(answered), tonumber(known)
local header, worker = KEYS[1], 'w:' .. ARGV[2]
local state = redis.call('HMGET', header, 'signature', worker, 'slices', 'filled', 'losses')
if state[1] ~= ARGV[1] then return 'other' end
if not state[2] then return 'stranger' end
local text, filled, losses = state[3], tonumber(state[4]), tonumber(state[5])
local last, status, digits = state[2]:match('^(%d+) (%a+) (%d*)$')
last = tonumber(last)
local function answer(rolled_back)
  local line = status .. ' ' .. losses .. ' ' .. rolled_back .. ' ' .. digits
  return status == 'full' and line .. ' ' .. text or line
end
if number < last then return 'stale' end
if number == last then return answer(0) end

@slices
local probes = ARGV[4]

if look_for_losses == '1' then look() end

local answers = {}
status = 'ok'
@mark
-- Redis takes nothing back when a script fails. So the call ends here, with an answer like every
-- other: if it were repeated, it would find its own bits.
local done, problem = pcall(mark)
if not done then status = 'broken' end
digits = table.concat(answers)
losses = losses + lost
redis.call('HSET', header, worker, number .. ' ' .. status .. ' ' .. digits, 'filled', filled,
  'slices', text, 'losses', losses)
local line = answer(last < answered and 1 or 0)
if done then return line end
return line .. ' ' .. (type(problem) == 'table' and problem.err or tostring(problem))
