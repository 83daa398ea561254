-- The workers: which are alive, when a run of theirs begins, and what becomes of what dead ones have taken.
--
-- A worker is dead if it has no lease although workers have called for a whole lease without a gap. So after the
-- server has stood still, or its clock was changed, every worker gets another lease.
local SWEEP, SCANNED, DAY = 1, 300, 86400
local MOST_DEAD = 200  -- tombstones that are kept: each sweep reads them all. Without one a worker starts over

-- Set `clock`, given `contact_since`, `last_contact`, `swept` and `skew` of the header. Return the fields and values
-- that are to be written of these, and since when workers have called without a gap if a sweep is due.
--
-- If the server's clock has gone back, `clock` stays where it was, so that nobody waits longer for that.
local function read_clock(since, last, swept, skew, lease)
  local moment, changed = string.format('%.3f', now), {'last_contact'}
  changed[2] = moment
  local back = last - now > 1  -- less is rounding: two calls may come within a millisecond
  if back or now - last > lease / 3 then
    since, changed[#changed + 1], changed[#changed + 2] = now, 'contact_since', moment
  end
  if back then
    skew = skew + last - now
    changed[#changed + 1], changed[#changed + 2] = 'skew', string.format('%.3f', skew)
  end
  clock = math.floor((now + skew) * SECOND)
  local due = back or now - swept >= SWEEP
  if due then changed[#changed + 1], changed[#changed + 2] = 'swept', moment end
  return changed, due and tonumber(since)
end

local function write_worker(worker, number, expires, delay, changed)
  call('HSET', header, 'w:' .. worker, string.format('%.0f %.3f %.3f', number, expires, delay), unpack(changed))
end

-- If `dates` is lost, set them anew, a portion at a time: what is listed failed long ago.
local function mend_dates()
  if call('ZCARD', dates) >= call('HLEN', failed) then return end
  local portion = call('HSCAN', failed, call('HGET', header, 'undated') or '0', 'COUNT', SCANNED)
  for i = 1, #portion[2], 2 do call('ZADD', dates, 'NX', '0', portion[2][i]) end
  call('HSET', header, 'undated', portion[1])
end

-- A worker comes, and with it a run begins: it fetches again what has failed before. But where others are, a run that
-- does so goes on for an hour: else a worker that comes every minute keeps all of them from the end of the crawl.
local function come(worker, lease)
  mend_dates()
  call('HDEL', header, 'through')
  local began, retried = unpack(call('HMGET', header, 'began', 'retried'))
  local alone = true
  for name, other in pairs(read_workers()) do
    if name ~= worker and is_valid(other.expires, lease) then alone = false end
  end
  if not alone and retried and tonumber(began) > clock - HOUR then return began end
  began = format_time(clock)
  call('HSET', header, 'began', began)
  if alone then call('HSET', header, 'came', began) end
  begin_look('+inf')
  call('HDEL', header, 'retried')
  return began
end

-- Bury the workers that have missed their lease. Return how many are alive.
local function bury(workers, lease, patient)
  local alive, longest, dead = 0, 0, {}
  for name, worker in pairs(workers) do
    if worker.expires ~= 'dead' and patient and not is_valid(worker.expires, lease) then
      worker.expires, worker.delay = 'dead', now
      call('HSET', header, 'w:' .. name, string.format('%.0f dead %.0f', worker.number, now))
      call('HDEL', header, 'a:' .. name)
    end
    if worker.expires == 'dead' then
      dead[#dead + 1] = {name = name, since = worker.delay}
    else
      alive, longest = alive + 1, math.max(longest, worker.delay or 0)
    end
  end
  table.sort(dead, function(one, other) return one.since > other.since end)
  for i, tombstone in ipairs(dead) do
    if i > MOST_DEAD or now - tombstone.since > DAY then call('HDEL', header, 'w:' .. tombstone.name) end
  end
  call('HSET', header, 'delay', string.format('%.3f', longest))
  return alive
end

-- Put back what dead workers have taken in a portion of `taken`; the next sweep scans the next one, over and over.
-- Return how many requests went into the queue, and how many were given up.
local function put_portion_back(workers, cursor, most)
  local places = {queue = 0, given_up = 0}
  local portion = call('HSCAN', taken, cursor, 'COUNT', SCANNED)
  for i = 1, #portion[2], 2 do
    local field = portion[2][i]
    local worker = workers[field:sub(1, -9)]
    if not worker or worker.expires == 'dead' then
      local reason = worker and worker.blocked and 'workers were blocked by it' or 'workers died with it'
      local deaths = worker and not worker.named and 1 or 0  -- else the page that did it has failed
      local place = put_back(field, deaths, most, reason)
      if place then places[place] = places[place] + 1 end
    end
  end
  call('HSET', header, 'sweep', portion[1])
  return places.queue, places.given_up
end

-- Put back a portion of what failed an hour ago. For an hour after workers came where none was, it comes last instead,
-- see fetch_again(). Return how many these were.
local function put_hourly_back()
  local hour_ago = clock - HOUR
  if tonumber(call('HGET', header, 'came') or 0) > hour_ago then return 0 end
  return put_failed_back(format_time(hour_ago))
end

-- Once a second, across all workers: see who is dead, and put a portion of their requests back, and of what failed an
-- hour ago. The results are those of put_portion_back().
local function sweep(since, lease, most)
  local workers = read_workers()
  local alive = bury(workers, lease, now - since > lease)
  local queued, given_up = put_portion_back(workers, call('HGET', header, 'sweep') or '0', most)
  mend_dates()
  begin_look(format_time(clock - HOUR))  -- no worker may come for days
  local hourly = put_hourly_back()
  if queued + given_up + hourly > 0 then count() end
  drop_free(PORTION)
  if call('ZCARD', paused) > PORTION then announce_pauses() end  -- an answer has only as many
  drop_pauses(PORTION)
  call('HSET', header, 'workers', alive, 'hosts', call('ZCARD', turns), 'paused', call('ZCARD', paused))
  return queued, given_up
end
