-- Tell how much there is in the queue. Writes only if something has vanished.
--
-- KEYS[1]  the state of the queue
-- KEYS[2]  what the names of its keys begin with
-- ARGV[1]  epoch of the state
-- ARGV[2]  worker
-- ARGV[3]  numbers of the last call and of the last offer whose answers the worker has
--
-- Answers {"ok", report}
--     or  {"back", report} if the server has gone back to an older state
--     or  {"stranger"} if the worker is not registered
--     or  {"other"} if the queue is not there
local base = KEYS[2]
@queue
local record, word = begin(ARGV[1], 'n:' .. ARGV[2])
if not record then return {word} end
if lost > 0 then finish(false) end
local taking, offering = ARGV[3]:match('(%d+) (%d+)')
local offers = redis.call('HGET', state, 'o:' .. ARGV[2]) or '0'
local back = tonumber(record:match('^%d+')) < tonumber(taking)
  or tonumber(offers:match('^%d+')) < tonumber(offering)
return {back and 'back' or 'ok', report()}
