-- Part of the scripts of the queue. `base` must be set: what the names of its keys begin with:
--     queue        the requests that wait, a sorted set. Score: the priority, negated. Member:
--                  8 bytes, a number that orders the requests of one priority; 1 byte, how many
--                  workers have died with it; 4 bytes, 1 + length of the fingerprint, or 0 if there
--                  is none; the fingerprint; the body
--     taken        the requests that workers have taken or hold, a hash. Field: the worker and
--                  8 bytes. Value: score, a space, member
--     failed       the requests that nobody takes any more, a hash of the same kind
--     again        fingerprints that are new once more, a set
--     queue:state  the worker's records, and how much there is in the other keys: if there is less,
--                  something has vanished, and `gone` counts it. `returned` counts what workers gave
--                  back, or had when they died. `copied` notes a copy, as in `base.py`
local unpack = table.unpack or unpack
local state, queue, taken = base .. 'queue:state', base .. 'queue', base .. 'taken'
local failed, again = base .. 'failed', base .. 'again'
local counts = {}
local lost = 0  -- how much this call has missed

local function survey()
  counts.waiting, counts.taken = redis.call('ZCARD', queue), redis.call('HLEN', taken)
  counts.failed, counts.again = redis.call('HLEN', failed), redis.call('SCARD', again)
end

-- Read the state. Return a field of it; or nothing, and a word if state or field are not there.
local function begin(epoch, field)
  local found = redis.call('HMGET', state, 'epoch', field, 'version', 'waiting', 'taken', 'failed',
    'again', 'gone', 'returned')
  if found[1] ~= epoch then return nil, 'other' end
  if not found[2] then return nil, 'stranger' end
  counts.version = tonumber(found[3])
  survey()
  for i, name in ipairs({'waiting', 'taken', 'failed', 'again'}) do
    lost = lost + math.max(0, tonumber(found[3 + i]) - counts[name])
  end
  counts.gone = tonumber(found[8] or 0) + lost
  counts.returned = tonumber(found[9] or 0)
  return found[2]
end

-- Store the counts, and fields and values that are given.
local function finish(changed, ...)
  survey()
  if changed then counts.version = counts.version + 1 end
  redis.call('HSET', state, 'version', counts.version, 'waiting', counts.waiting, 'taken',
    counts.taken, 'failed', counts.failed, 'again', counts.again, 'gone', counts.gone, 'returned',
    counts.returned, ...)
end

-- What every answer tells about the queue.
local function report()
  return string.format('%d %d %d %d %d %d', counts.version, counts.waiting, counts.taken,
    counts.failed, counts.gone, counts.returned)
end

-- Put a request from `taken` back to its place. One without a body is held: its mark is undone.
local function put_back(value, died)
  local space = value:find(' ', 1, true)
  local score, member = value:sub(1, space - 1), value:sub(space + 1)
  local tries, length = struct.unpack('>BI4', member, 9)
  counts.returned = counts.returned + 1
  if #member == 12 + length then
    redis.call('SADD', again, member:sub(14))
    return
  end
  tries = string.char(math.min(255, tries + died))
  redis.call('ZADD', queue, score, member:sub(1, 8) .. tries .. member:sub(10))
end
