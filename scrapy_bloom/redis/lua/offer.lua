-- Add a batch of items to the filter, and put the requests of those that were not there into the
-- queue, in one call of a worker. A template as add.lua.
--
-- KEYS[1]  the header
-- KEYS[2]  what the names of the filter's segments begin with
-- ARGV[1]  signature of the filter
-- ARGV[2]  worker, as the queue knows it
-- ARGV[3]  as for add.lua; the calls that offer are counted apart from all others
-- ARGV[4]  the probes of all items in one string
-- ARGV[5]  the slice to add when all are full; empty if the worker names none
-- ARGV[6]  epoch of the queue's state
-- ARGV[7]  a letter for each request: "f" if it has an item; "h" if it has one and is held; "p" if
--          it has none. "F" and "H" are queued, or held, even if their items were there. Then, if
--          some have a greatest age, a space and ITEM:SECONDS of each, as for add.lua.
-- ARGV[8...]  for each request the score, and its member without the number and the byte after it;
--          before it stand 8 bytes, its name, if it is held
--
-- Answers a report on the queue, a line feed, and what add.lua answers
--     or  "absent"    the queue is not there
--         "stranger"  the worker is not registered in the queue
--         "buried"    others took the worker for dead, before this call was carried out
--         "stale"     a later call of this worker was answered before
--         "other"     the filter is not there. Then nothing was changed.
-- A call that was answered before gets the same answer and changes nothing, also if the filter that
-- it was made for is not there any more.
local base = KEYS[2]:match('^(.*:)[^:]*:$')
@queue
local record, word = begin(ARGV[6], 'o:' .. ARGV[2])
if not record then return word == 'other' and 'absent' or word end
local number, answered, look_for_losses, known = ARGV[3]:match('(%d+) (%d+) (%d) (%S+)')
number, answered, known = tonumber(number), tonumber(answered), tonumber(known)
local last, status, digits = record:match('^(%d+) (%a+) (%d*)$')
last = tonumber(last)
local header = KEYS[1]
local found = redis.call('HMGET', header, 'signature', 'slices', 'filled', 'losses', 'again',
  'queued')
local again_field, told_of_queue = found[5], found[6]
local there = found[1] == ARGV[1]
local text, filled, losses = found[2], tonumber(found[3]), there and tonumber(found[4]) or 0
local function answer(rolled_back)
  local line = status .. ' ' .. losses .. ' ' .. rolled_back .. ' ' .. digits
  local more = status == 'full' or status == 'due'
  return report() .. '\n' .. (more and line .. ' ' .. text or line)
end
if number < last then return 'stale' end
if number == last and (there or status ~= 'full' and status ~= 'due') then return answer(0) end
if redis.call('HEXISTS', state, 'n:' .. ARGV[2]) == 0 then return 'buried' end
if not there then return 'other' end

local letters = ARGV[7]:match('^%a*')
local order, newest_number = unpack(redis.call('HMGET', state, 'order', 'seq'))
local time = redis.call('TIME')
-- Numbers follow the clock, so that none comes twice after the server has lost its state.
local first = math.max(newest_number + 1, time[1] * 1000000 + time[2])
local pushed, held = {}, {}

local function put_in(at)
  local score, rest = ARGV[6 + 2 * at], ARGV[7 + 2 * at]
  if letters:byte(at) % 32 == 8 then  -- "h" or "H"
    held[#held + 1] = ARGV[2] .. rest:sub(1, 8)
    held[#held + 1] = score .. ' ' .. rest:sub(1, 8) .. '\0' .. rest:sub(9)
    return
  end
  local place = first + at
  if order:sub(1, 4) == 'lifo' then place = 9007199254740992 - place end
  pushed[#pushed + 1] = score
  pushed[#pushed + 1] = struct.pack('>I8B', place, 0) .. rest
end

local items = {}  -- which request has the first item, the second, ...
for at = 1, #letters do
  if letters:byte(at) == 112 then put_in(at) else items[#items + 1] = at end
end

local undone = counts.again > 0
local function admit(item, seen)
  local at = items[item]
  local letter, rest = letters:byte(at), ARGV[7 + 2 * at]
  if undone then
    local from = letter % 32 == 8 and 9 or 1
    local length = struct.unpack('>I4', rest, from)
    if redis.call('SREM', again, rest:sub(from + 4, from + 2 + length)) == 1 then seen = false end
  end
  if letter < 97 then seen = false end
  if not seen then put_in(at) end
  return seen
end

@slices
local probes, ages_text = ARGV[4], ARGV[7]:match(' (.*)$')

if look_for_losses == '1' then look(math.floor(number / 1000)) end

local answers = {}
status = 'ok'
@mark

-- As in add.lua; what was marked before the error is queued as well.
local done, problem = pcall(mark)
if not done then status = 'broken' end
digits = table.concat(answers)
losses = losses + lost
-- window begins
keep()
-- window ends
if #pushed > 0 then redis.call('ZADD', queue, unpack(pushed)) end
if #held > 0 then redis.call('HSET', taken, unpack(held)) end
redis.call('HSET', header, 'filled', filled, 'slices', text, 'losses', losses)
if not told_of_queue then redis.call('HSET', header, 'queued', '1') end  -- see queue_join.lua
finish(#pushed + #held > 0, 'seq', string.format('%.0f', first + #letters),
  'o:' .. ARGV[2], number .. ' ' .. status .. ' ' .. digits)
local line = answer(last < answered and 1 or 0)
-- window begins
if status == 'ok' then return line .. lasts() end
-- window ends
if done then return line end
return line .. ' ' .. (type(problem) == 'table' and problem.err or tostring(problem))
