-- Take requests off the queue, in one call of a worker, after others were put where they belong.
--
-- KEYS[1]  the state of the queue
-- KEYS[2]  what the names of its keys begin with
-- ARGV[1]  epoch of the state
-- ARGV[2]  worker
-- ARGV[3]  five words: number of this call; numbers of the last call and of the last offer whose
--          answers the worker has; how many requests to take; with how many dead workers a request
--          is risky
-- ARGV[4]  "1" if the worker has a risky request already, else "0"
-- ARGV[5]  the requests that are done, 8 bytes each
-- ARGV[6]  those that it gives back
-- ARGV[7]  those that it puts aside
--
-- A worker gets one risky request at a time: so none fails because of its neighbours.
-- Answers {"ok", report, request, ...}; a request is what is stored in `taken`
--     or  {"back", report} if the server has gone back to an older state. Then nothing was changed.
--     or  {"stale"} if a later call of this worker was answered before
--     or  {"stranger"} if the worker is not registered
--     or  {"other"} if the queue is not there
-- A call that was answered before gets the same answer and changes nothing.
local base = KEYS[2]
@queue
local record, word = begin(ARGV[1], 'n:' .. ARGV[2])
if not record then return {word} end
local number, answered, offered, count, risk = ARGV[3]:match('(%d+) (%d+) (%d+) (%d+) (%d+)')
number, answered, risk = tonumber(number), tonumber(answered), tonumber(risk)
local last, ids = record:match('^(%d+) (.*)$')
last = tonumber(last)
-- What is done now may have led to requests of an offer that the server has forgotten.
local offers = redis.call('HGET', state, 'o:' .. ARGV[2]) or '0'
if last < answered or tonumber(offers:match('^%d+')) < tonumber(offered) then
  if lost > 0 then finish(false) end
  return {'back', report()}
end
if number < last then return {'stale'} end

local function each(text, act)
  for i = 1, #text, 8 do
    local id = text:sub(i, i + 7)
    local field = ARGV[2] .. id
    local value = redis.call('HGET', taken, field)
    if value then
      act(value, id)
      redis.call('HDEL', taken, field)
    end
  end
end

local got = {}
if number == last then
  for i = 1, #ids, 8 do
    local value = redis.call('HGET', taken, ARGV[2] .. ids:sub(i, i + 7))
    if value then got[#got + 1] = value end
  end
else
  for i = 1, #ARGV[5], 8 do redis.call('HDEL', taken, ARGV[2] .. ARGV[5]:sub(i, i + 7)) end
  each(ARGV[6], function(value) put_back(value, 0) end)
  each(ARGV[7], function(value, id) redis.call('HSET', failed, id, value) end)
  local risky, aside, names = ARGV[4] == '1', {}, {}
  local found = count == '0' and {} or redis.call('ZPOPMIN', queue, count)
  for i = 1, #found, 2 do
    local member, score = found[i], found[i + 1]
    if member:byte(9) >= risk and risky then
      aside[#aside + 1] = {score, member}
    else
      risky = risky or member:byte(9) >= risk
      local id, value = member:sub(1, 8), score .. ' ' .. member
      redis.call('HSET', taken, ARGV[2] .. id, value)
      names[#names + 1] = id
      got[#got + 1] = value
    end
  end
  for i = 1, #aside do redis.call('ZADD', queue, aside[i][1], aside[i][2]) end
  local changed = #got > 0 or ARGV[5] ~= '' or ARGV[6] ~= '' or ARGV[7] ~= ''
  finish(changed, 'n:' .. ARGV[2], ARGV[3]:match('^%d+') .. ' ' .. table.concat(names))
end
return {'ok', report(), unpack(got)}
