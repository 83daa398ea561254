-- Tell what the queue holds, at one moment. Writes nothing.
--
-- KEYS[1]  the state of the queue
-- KEYS[2]  what the names of its keys begin with
-- ARGV[1]  not used
--
-- Answers {"ok", time of the server, requests that wait, taken ones, failed ones, marks that are new
--          once more, field of the state, value, ...}; no fields if there is no queue
local time = redis.call('TIME')
local answer = {'ok', string.format('%d.%06d', time[1], time[2]),
  redis.call('ZCARD', KEYS[2] .. 'queue'), redis.call('HLEN', KEYS[2] .. 'taken'),
  redis.call('HLEN', KEYS[2] .. 'failed'), redis.call('SCARD', KEYS[2] .. 'again')}
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields do answer[#answer + 1] = fields[i] end
return answer
