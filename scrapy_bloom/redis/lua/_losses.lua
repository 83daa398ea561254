-- What to do when something has vanished.

-- Store how many requests there are, and what else is given; return the counts.
local function count(...)
  local waiting = call('ZCARD', queue) + call('ZCARD', later)
  local in_flight, failures, unparsed_count = call('HLEN', taken), call('HLEN', failed), call('HLEN', unparsed)
  local stored = call('HLEN', bodies)
  if stored > 0 and waiting + in_flight + failures + unparsed_count == 0 then  -- of requests that have vanished
    call('UNLINK', bodies)
    stored = 0
  end
  call('HSET', header, 'waiting', waiting, 'taken', in_flight, 'failed', failures, 'unparsed', unparsed_count,
    'bodies', stored, ...)
  return waiting, in_flight, failures, unparsed_count
end

-- Let the next sweeps put back everything that was taken. The workers start over under new names.
local function disown()
  for _, field in ipairs(call('HKEYS', header)) do
    local kind = field:sub(1, 2)
    if kind == 'w:' or kind == 'a:' then call('HDEL', header, field) end
  end
end

-- Count anew: pages are fetched again. What has failed or is unparsed stays listed.
local function forget_account()
  call('UNLINK', starts, led, failed_ways)
  call('HDEL', header, 'done', 'not_kept', 'seen', 'look')
  if call('EXISTS', failed) == 0 then call('UNLINK', reasons) end
  if call('EXISTS', unparsed) == 0 then call('UNLINK', decisions) end
end

-- Drop all marks: a new epoch with one empty slice. Every worker of the old one starts over.
local function start_over()
  local epoch, text, first = unpack(call('HMGET', header, 'epoch', 'slices', 'first'))
  local slices = read_slices(text, epoch)
  local empty = string.format('%s:%.0f', first, slices[#slices].number + 1)
  drop_all(slices, epoch)
  disown()
  forget_account()
  call('HSET', header, 'epoch', epoch:match('^%x+') .. '-' .. time[1] .. '-' .. time[2], 'slices',
    string.format('%s:%.6f:0:0', empty, now))
  await(empty)
  count()
end

-- Whether pages have vanished from a list of forgotten ones.
local function again_vanished(slices)
  for _, slice in ipairs(slices) do
    if slice.again > 0 and call('SCARD', slice.name .. 'again') < slice.again then return true end
  end
  return false
end
