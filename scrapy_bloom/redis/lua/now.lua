-- Tell the time of the server that has the filter.
--
-- KEYS[1]  the header
-- KEYS[2]  not used
-- ARGV[1]  not used
--
-- Answers {"ok", seconds since 1970}.
local time = redis.call('TIME')
return {'ok', string.format('%d.%06d', time[1], time[2])}
