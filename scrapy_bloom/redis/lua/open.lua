-- Find the filter, or create it.
--
-- ARGV, in this order:
--   old_epoch   that this worker used before; empty if none
--   old_worker  its name then
--   answered    the number of its last call whose answer it has; -1 if none
--   worker      its name from now on
--   lease       seconds
--   then fields and values of the header of a new filter
-- Answers {"ok", made, whole, now, value...}: "1" if it was made by this call, else "0"; "1" if all that this worker
--            was sent before is still there, else "0"; the server's time; the fields program, format, epoch, plan, first,
--            slices, window, order, waiting, taken, failed, unparsed, forgotten and seq
--     or  {"deleted"}         the user has deleted the epoch that this worker has used
--     or  {"format", program, format}  the header is in another format
--     or  {"type", key, type} something else is under a key
-- Fails, with nothing changed, if a command that is needed is not allowed. May be repeated.
local old_epoch, old_worker, answered, worker, lease = unpack(ARGV, 1, 5)
local FIRST_FIELD = 6  -- where in ARGV the header of a new filter begins: program and format come first
local kind = call('TYPE', header).ok
if kind ~= 'none' and kind ~= 'hash' then return {'type', header, kind} end
local program, number, epoch, deleted = unpack(call('HMGET', header, 'program', 'format', 'epoch', 'deleted'))
if kind == 'hash' and not program then return {'type', header, kind} end
if (number or epoch) and (program ~= ARGV[7] or number ~= ARGV[9]) then return {'format', program, number or ''} end
for key, kind in pairs({[queue] = 'zset', [later] = 'zset', [turns] = 'zset',
  [frees] = 'zset', [paused] = 'zset', [delays] = 'hash', [taken] = 'hash', [failed] = 'hash', [bodies] = 'hash',
  [dates] = 'zset', [unparsed] = 'hash', [led] = 'hash', [failed_ways] = 'zset',
  [reasons] = 'hash', [decisions] = 'hash', [starts] = 'hash'}) do
  local found = call('TYPE', key).ok
  if found ~= 'none' and found ~= kind then return {'type', key, found} end
end
if old_epoch ~= '' and epoch ~= old_epoch and other_epoch(old_epoch, deleted)[1] == 'deleted' then
  return {'deleted'}
end

-- Try every command that a later script needs, on a key of its own.
local key, problem = base .. 'trial', nil
for _, words in ipairs({
  {'EXISTS', key}, {'UNLINK', key}, {'BITFIELD', key, 'SET', 'u1', '0', '1'}, {'BITFIELD_RO', key, 'GET', 'u1', '0'},
  {'UNLINK', key}, {'HSET', key, 'a', '1'}, {'HGET', key, 'a'}, {'HMGET', key, 'a'}, {'HKEYS', key}, {'HLEN', key},
  {'HSCAN', key, '0', 'COUNT', '1'}, {'HDEL', key, 'a'},
  {'UNLINK', key}, {'SADD', key, '1'}, {'SCARD', key}, {'SISMEMBER', key, '1'}, {'SREM', key, '1'},
  {'UNLINK', key}, {'ZADD', key, '0', '1'}, {'ZCARD', key}, {'ZSCORE', key, '1'}, {'ZRANGEBYLEX', key, '-', '+'},
  {'ZRANGEBYSCORE', key, '0', '1'}, {'ZREM', key, '2'}, {'EXPIRE', key, '1'}, {'PERSIST', key},
}) do
  local answer = redis.pcall(unpack(words))
  if type(answer) == 'table' and answer.err then
    problem = answer
    break
  end
end
call('UNLINK', key)
if problem then return problem end

local made = not epoch
if made then
  disown()
  -- Without the header nobody knows by which clock these times are. All pages are fetched again.
  call('UNLINK', later, turns, frees, paused, dates)
  forget_account()
  call('PERSIST', header)
  local moment = string.format('%.3f', now)
  call('HSET', header, 'contact_since', moment, 'last_contact', moment, 'swept', moment, 'skew', 0,
    unpack(ARGV, FIRST_FIELD))
  local first = call('HGET', header, 'first') .. ':0'
  call('HSET', header, 'slices', string.format('%s:%.6f:0:0', first, now))
  await(first)
  count()
end

-- Without its record the server may have lost anything that this worker knows. With it the new name gets one, so
-- that the first call under this name finds out if the server goes back between now and then.
local whole = false
if epoch == old_epoch then
  local last = read_worker(call('HGET', header, 'w:' .. old_worker))
  whole = last and last >= tonumber(answered)
  if whole and not call('HGET', header, 'w:' .. worker) then
    call('HSET', header, 'w:' .. worker, string.format('0 %.3f 0', now + lease))
  end
end

if old_epoch ~= '' and not whole then call('HDEL', header, 'through') end  -- it runs its start() again

local answer = call('HMGET', header, 'program', 'format', 'epoch', 'plan', 'first', 'slices', 'window', 'order',
  'waiting', 'taken', 'failed', 'unparsed', 'forgotten', 'seq')
for i = 1, 14 do answer[i] = answer[i] or '' end
return {'ok', made and '1' or '0', whole and '1' or '0', string.format('%.6f', now), unpack(answer)}
