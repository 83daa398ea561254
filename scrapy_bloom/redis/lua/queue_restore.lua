-- Give a worker that has registered again what it had under its old name.
--
-- KEYS[1]  the state of the queue
-- KEYS[2]  what the names of its keys begin with
-- ARGV[1]  epoch of the state
-- ARGV[2]  worker
-- ARGV[3]  its old name; the same if it has kept it
-- ARGV[4]  three words: number of its last exchange; number of this call; how many requests it has
--          taken that others are about to queue again
-- ARGV[5]  the requests that are done, 8 bytes each
-- ARGV[6...]  the requests that it has, as they are stored in `taken`
--
-- What is there under the old name and is not among these goes back to the queue.
-- Answers {"ok", report}
--     or  {"buried", report} if others took it for dead under its old name, and have put back what
--         it had. Then nothing was changed.
--     or  {"stale"} if it has made another exchange since: it may not have these requests any more
--     or  {"stranger"} if the worker is not registered
--     or  {"other"} if the queue is not there
local base = KEYS[2]
@queue
local record, word = begin(ARGV[1], 'n:' .. ARGV[2])
if not record then return {word} end
local exchanged, number, twice = ARGV[4]:match('(%d+) (%d+) (%d+)')
if tonumber(record:match('^%d+')) > tonumber(exchanged) then return {'stale'} end
local old = ARGV[3]
if old ~= ARGV[2] and redis.call('HEXISTS', state, 'd:' .. old) == 1 then
  if lost > 0 then finish(false) end
  return {'buried', report()}
end
local own, missing = {}, 0
for i = 6, #ARGV do
  local from = ARGV[i]:find(' ', 1, true) + 1
  local id = ARGV[i]:sub(from, from + 7)
  own[id] = true
  if redis.call('HEXISTS', taken, old .. id) == 0 then missing = missing + 1 end
  redis.call('HSET', taken, ARGV[2] .. id, ARGV[i])
end
for i = 1, #ARGV[5], 8 do  -- these were to go in any case
  if redis.call('HEXISTS', taken, old .. ARGV[5]:sub(i, i + 7)) == 0 then missing = missing + 1 end
end
if redis.call('HGET', state, 'b:' .. ARGV[2]) ~= number then
  counts.back = counts.back + missing - twice
  redis.call('HSET', state, 'b:' .. ARGV[2], number)
end
if old ~= ARGV[2] then
  local fields = redis.call('HKEYS', taken)
  for i = 1, #fields do
    local field = fields[i]
    if field:sub(1, -9) == old then
      if not own[field:sub(-8)] then put_back(redis.call('HGET', taken, field), 0) end
      redis.call('HDEL', taken, field)
    end
  end
  redis.call('HDEL', state, 'l:' .. old, 'n:' .. old, 'o:' .. old, 'b:' .. old)
end
finish(true)
return {'ok', report()}
