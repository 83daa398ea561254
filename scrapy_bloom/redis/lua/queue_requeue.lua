-- Put what a worker had taken back into the queue, some requests at a time.
--
-- First the marks of those that it held are undone, in all shards. Else somebody could fetch the page
-- that led to them once more, and be told that they are seen.
--
-- KEYS[1]  the state of the queue
-- KEYS[2]  what the names of its keys begin with
-- ARGV[1]  epoch of the state
-- ARGV[2]  worker
-- ARGV[3]  the worker that is dead; the same if it leaves
-- ARGV[4]  the end of the lease of the dead worker, as it was seen for too long
-- ARGV[5]  how many workers may die with one request
-- ARGV[6]  where to go on: "held 0" first, then what the last answer said
--
-- Answers {"ok", report, where to go on, how many were put back, how many failed}. It goes on at
--         "rest 0" when all that was held is undone, and at "end" if nothing is left
--     or  {"lives"} if the worker has given a sign of life
--     or  {"stranger"} if the caller is not registered
--     or  {"other"} if the queue is not there
local base = KEYS[2]
@queue
local record, word = begin(ARGV[1], 'l:' .. ARGV[2])
if not record then return {word} end
local dead = ARGV[3]
local died = dead == ARGV[2] and 0 or 1
if died == 1 and redis.call('HGET', state, 'l:' .. dead) ~= ARGV[4] then return {'lives'} end
-- From now on its calls are a stranger's, but it may still ask what came of its last offer. The
-- lease goes last, so that somebody else can go on.
redis.call('HDEL', state, 'n:' .. dead)
if died == 1 then redis.call('HSET', state, 'd:' .. dead, redis.call('TIME')[1]) end
local part, cursor = ARGV[6]:match('^(%a+) (%d+)$')
local found = redis.call('HSCAN', taken, cursor, 'COUNT', '200')
local requeued, given_up = 0, 0

local function take_from_dead(field, value)
  local member = value:find(' ', 1, true) + 1
  local tries, length = struct.unpack('>BI4', value, member + 8)
  local held = #value - member == 11 + length
  if held ~= (part == 'held') then return end
  if died == 1 and not held and tries + 1 >= tonumber(ARGV[5]) then
    local died_with = string.char(math.min(255, tries + 1))
    value = value:sub(1, member + 7) .. died_with .. value:sub(member + 9)
    redis.call('HSET', failed, field:sub(-8), value)
    given_up = given_up + 1
  else
    put_back(value, died)
    requeued = requeued + 1
  end
  redis.call('HDEL', taken, field)
end

for i = 1, #found[2], 2 do
  if found[2][i]:sub(1, -9) == dead then take_from_dead(found[2][i], found[2][i + 1]) end
end
local onward = part .. ' ' .. found[1]
if found[1] == '0' then
  onward = part == 'held' and 'rest 0' or 'end'
  if onward == 'end' then
    redis.call('HDEL', state, 'l:' .. dead)
    if died == 0 then redis.call('HDEL', state, 'o:' .. dead) end
  end
end
finish(true)
return {'ok', report(), onward, requeued, given_up}
