-- Let one worker at a time do something; or note that it is over.
--
-- KEYS[1]  the state of the queue
-- KEYS[2]  what the names of its keys begin with
-- ARGV[1]  epoch of the state
-- ARGV[2]  worker
-- ARGV[3]  what is to be done
-- ARGV[4]  a word that is kept until it is over, if none is kept already
-- ARGV[5]  "1" if it is over, else "0"
--
-- Answers {"ok", report, the word that is kept}
--     or  {"taken", report, the word that is kept} if another worker does it, and lives
--     or  {"stranger"} if the worker is not registered
--     or  {"other"} if the queue is not there
local base = KEYS[2]
@queue
local record, found = begin(ARGV[1], 'n:' .. ARGV[2])
if not record then return {found} end
if lost > 0 then finish(false) end
local field, word = 'c:' .. ARGV[3], ARGV[4]
local claim = redis.call('HGET', state, field)
if claim then
  local holder
  holder, word = claim:match('^(%S+) (%S+)$')
  if holder ~= ARGV[2] and redis.call('HEXISTS', state, 'l:' .. holder) == 1 then
    return {'taken', report(), word}
  end
end
if ARGV[5] == '1' then
  redis.call('HDEL', state, field)
else
  redis.call('HSET', state, field, ARGV[2] .. ' ' .. word)
end
return {'ok', report(), word}
