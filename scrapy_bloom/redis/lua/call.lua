-- Everything that a worker sends, in one call: marks, requests, what it wants, what is done. It takes effect as a
-- whole, or all marks are dropped. A call repeated with its number gets the same answer.
--
-- ARGV[1]  a map in MessagePack, which redis/wire.py writes:
--   epoch, worker  who calls
--   number      of this call
--   answered    of the last call whose answer the worker has, 0 if it only has a record, -1 if it need not have one
--   lease       seconds
--   comes       whether it has just come
--   most        deaths after which a request is given up, see _failed.lua; with one less it is risky
--   risky       whether the worker has a risky one: then it takes nothing
--   alone       whether it has nothing: only then it takes a risky one, and nothing else; else it passes it over
--   seen        how many links were dropped since its last call, because they led to seen pages
--   take, room  how many requests to take; how many bytes of them, after the first
--   through     whether its start() is through
--   idle        whether start() is through, and nothing is in flight here
--   ahead       seconds before its turn that a request may be taken
--   lead        seconds that the answer may take: no turn of a slot with a delay comes sooner
--   slack       seconds that such a turn lasts, as the worker may be late
--   delay, jitter  its pace for slots that have no other
--   ops         a letter for each entry. "m": mark. "f": mark, and queue if it is new. "p": queue; the entry has
--               no probe. "x": forget
--   probes      of the entries
--   ages        maximum ages in seconds, by item. Items are the entries with probes, from 1
--   pushed      for each entry "f" and "p" its head up to the priority, and its body
--   starts      16 bytes for each start request that may have come before, by entry, from 1
--   instead     ids of what this worker has taken, by the entry that stands for it: if that is queued, it has ended
--   not_before  for how many seconds a request may not be sent yet, by entry
--   pauses_version  what came with the last `paused`; "0" if the worker has none
--   ended       what has become of pages, in groups: {letter, start, count, ids}. "d" done, "n" something else stands for
--               it; the 16 bytes of a start request, or none; how many there are that have no id
--   not_kept    how many pages without an id are unparsed
--   failures    requests that no callback got: {id, the 16 bytes of a start request, or none, whether it is unparsed, the
--               kind to count, the rest of the row, the body to put back, probes of where it was redirected: if it is
--               unparsed to a seen page last, or none; else they are to be forgotten}
--   most_unparsed  how many rows `unparsed` may have
--   ways        probes of where redirects of restored ones have led, to be forgotten
--   restored    of `failed` and `unparsed`: {key, the head to put back, its body}; without a head, it is done
--   back        ids of requests to put back, whose turns were not used either
--   unreadable  ids of requests that this worker could not read: they go to the failed list
--   unused      ids of requests whose turns were not used, the latest first; they may have ended, too
--   paces       of slots: {slot, delay, jitter}
--   busy        slots of which this worker has enough
--   paused      slots to be paused: {slot, for how many seconds}
-- Ids are of 8 bytes each, one behind the other.
--
-- Answers {"ok", report, digits, paused, slices, row..., body...}: a digit for each item, 1 if it was there; unless that
--            has not changed since `pauses_version`, what to send there, and slots that are paused, each with its
--            seconds, at most 500; and what was taken: rows as in `taken`, then the bodies in the same order.
--            The report has names and numbers:
--              waiting, taken, failed, unparsed, forgotten, done, not_kept  as in the header
--              later               how many requests are in `later`
--              workers, hosts, paused  as in the header
--              expires             seconds until the next marks do
--              now, next           the time; how long until more can be taken, 0 if perhaps now, negative if there is
--                                  nothing. In microseconds
--              requeued, given_up  how many requests of dead workers this call has put back; how many are
--                                  given up
--              more                1 if failed requests are to be put back before the crawl is over, else 0
--              fetched_again       how many were, if this call has put back the last one
--     or  {"slices", slices, kind}  upkeep.lua must first make keys of a slice, see grow()
--     or  {"dead"}     the worker missed its lease; what it had is back in the queue
--     or  {"lost"}          the server does not know its earlier calls: it went back in time
--     or  {"gone"}          there is another epoch        {"deleted"}  the user has deleted it
--     or  {"broken", error} the call failed half-way; all marks were dropped
local sent = cmsgpack.unpack(ARGV[1])
local worker, number, lease, own_delay = sent.worker, sent.number, sent.lease, sent.delay
local record = 'w:' .. worker
local fields = read_header('epoch', record, 'slices', 'window', 'forgotten', 'order', 'seq', 'deleted', 'delay',
  'contact_since', 'last_contact', 'swept', 'skew', 'workers', 'hosts', 'paused', 'done', 'not_kept', 'seen',
  'began', 'look')
if fields.epoch ~= sent.epoch then return other_epoch(sent.epoch, fields.deleted) end
local surprise, last = surprise_of(fields[record], number, sent.answered)
if surprise then return {surprise} end

local digits, ids, text = '', '', fields.slices
local counts, requests  -- known if this call has just been carried out
read_marks(fields.slices, sent.epoch, fields.window, fields.forgotten)
local next_turn, requeued, given_up, fetched_again = 0, 0, 0, 0
counters.done, counters.not_kept = tonumber(fields.done or 0), tonumber(fields.not_kept or 0)
local began = fields.began or '0'

local function answer()
  local waiting, in_flight, failures, unparsed_count =
    unpack(counts or call('HMGET', header, 'waiting', 'taken', 'failed', 'unparsed'))
  local report = format('waiting %d taken %d failed %d unparsed %d forgotten %d done %d not_kept %d later %d workers %d '
    .. 'hosts %d paused %d expires %s now %d next %d requeued %d given_up %d more %d fetched_again %d',
    waiting, in_flight, failures, unparsed_count, forgotten, counters.done, counters.not_kept, call('ZCARD', later),
    fields.workers or 0, fields.hosts or 0, fields.paused or 0, seconds_left(), clock, next_turn,
    requeued, given_up, has_failed(began) and 1 or 0, fetched_again)
  local pauses, version = {}, call('HGET', header, 'pauses_version') or '0'
  if version ~= sent.pauses_version then
    pauses = call('ZRANGEBYSCORE', paused, format_time(clock), '+inf', 'WITHSCORES', 'LIMIT', '0', PORTION)
    for i = 2, #pauses, 2 do pauses[i] = format('%.6f', (pauses[i] - clock) / SECOND) end
    table.insert(pauses, 1, version)
  end
  return {'ok', report, digits, pauses, text, unpack(requests or read_again(worker, ids))}
end
local changed, contact_since = read_clock(fields.contact_since, fields.last_contact, fields.swept, fields.skew, lease)
if number == last then
  digits, ids = call('HGET', header, 'a:' .. worker):match('^(%d*) (.*)$')
  write_worker(worker, number, now + lease, own_delay, changed)
  return answer()
end
if start_over_if_vanished(slices) then return {'gone'} end

if #sent.probes > 0 then
  local kind = grow(sent.epoch)
  if kind then return {'slices', fields.slices, kind} end
end

-- The steps of a call, in the order in which carry_out() takes them.

local has_forgotten = false
local function forget_all(probes)
  if #probes == 0 then return end
  judge(string.rep('x', #probes / PROBE_BYTES), probes, {})
  has_forgotten = #slices > 0
end

-- Record what has become of pages.
local function settle()
  for _, group in ipairs(sent.ended) do
    local kind, start, total, these = unpack(group)
    total = total + remove(worker, these)
    if kind == 'd' then record_done(start, total) end
  end
  counters.not_kept = counters.not_kept + sent.not_kept
  forget_all(sent.ways .. record_failed(worker, sent.failures, sent.most_unparsed))
end

local function is_known(probe) return is_in_any(slices, probe) end

-- Queue the requests of entries that are new, and those of entries without a probe.
local function push()
  local seq = math.max(fields.seq + 1, math.floor(now * 1000000))
  local pushes, texts, slots, item, part, has_pushed = {}, {}, {}, 0, 1, false
  local before = {}
  for entry, start in pairs(sent.starts) do before[entry] = reopen(start, true) end
  local ops, parts = sent.ops, sent.pushed
  for entry = 1, #ops do
    local op = ops:sub(entry, entry)
    if op ~= 'p' then item = item + 1 end
    if op == 'p' or op == 'f' then
      if op == 'p' or digits:sub(item, item) == '0' then
        local head, beginning = before[entry], parts[part]
        if head then  -- its failures count on
          beginning = head:sub(1, -14)
        else
          local id, body = fields.order == 'lifo' and 9007199254740992 - seq - entry or seq + entry, parts[part + 1]
          head = beginning .. struct.pack('>I8I4B', id, #body, 0)
          texts[#texts + 1], texts[#texts + 2] = id_of(head), body
        end
        has_pushed = true
        if sent.starts[entry] then record_start(sent.starts[entry], worker .. ' ' .. head) end
        if sent.instead[entry] then remove(worker, sent.instead[entry]) end
        if sent.not_before[entry] then
          call('ZADD', later, format_time(clock + sent.not_before[entry] * SECOND), head)
        else
          pushes[#pushes + 1], pushes[#pushes + 2] = '0', head
          slots[beginning] = true
        end
      end
      part = part + 2
    end
  end
  if #texts > 0 then call('HSET', bodies, unpack(texts)) end
  if #pushes > 0 then call('ZADD', queue, unpack(pushes)) end
  for beginning in pairs(slots) do await_turn(slot_of(beginning)) end
  if has_pushed then call('HSET', header, 'seq', format('%.0f', seq + #ops)) end
end

local default = default_pace(own_delay, sent.jitter, fields.delay)

-- Put back what earlier runs have left on the failed list, once nothing, such as a login, is in flight, and nothing else
-- may be sent; from then on, while few requests wait. Each keeps its priority, and its place among those of its slot.
local FEW = 100  -- as long as more requests wait, none
local function fetch_again()
  if not has_failed(began) then return end
  local retried = call('HGET', header, 'retried')
  if not retried and not (sent.idle and call('HLEN', taken) == 0 and is_idle()) then return end
  if retried and not (sent.through and call('ZCARD', queue) < FEW) then return end
  local total = (retried or 0) + put_failed_back(began)
  call('HSET', header, 'retried', total)
  if not has_failed(began) then fetched_again = total end
end

local function take_requests(due_next)
  local haul
  haul, next_turn = take(sent, default)
  ids, requests = table.concat(haul.ids), with_bodies(haul.rows, haul.bodies)
  if due_next and next_turn ~= 0 then
    local wait = math.max(0, due_next - clock)
    next_turn = next_turn < 0 and wait or math.min(next_turn, wait)
  end
end

local function carry_out()
  -- A run begins first: what fails in this call fails in the run to which this worker has come.
  if sent.comes then began = come(worker, lease) end
  -- Pauses come before all that sets turns: no turn may come before a pause is over.
  pause_slots(sent.paused)
  -- Turns are given back while their requests are still taken: the rows say which turns these are. Then these leave
  -- `taken`, whatever becomes of them.
  free_turns(worker, sent.unused .. sent.back)
  settle()
  restore(sent.restored)
  for _, field in ipairs(fields_of(worker, sent.back)) do put_back(field, 0, sent.most) end
  refuse(worker, sent.unreadable)
  look(sent.comes and call('HGET', header, 'look') or fields.look, PROBE_BYTES, is_known, forget_all)
  -- settle() has forgotten where redirects of failed pages led: another link to there in this call is new. And only new
  -- pages are queued. A start request that ends and comes again has ended before it comes.
  local marking = #sent.probes > 0 or has_forgotten
  if #over > 0 and marking then drop(over) end
  digits = judge(sent.ops, sent.probes, sent.ages)
  push()
  -- Only a slot with a turn has a pace, and push() gives turns. take() serves each slot at its pace.
  set_paces(sent, default)
  -- Now come requests from elsewhere, so that this very call can take them. fetch_again() looks how many wait.
  if contact_since then requeued, given_up = sweep(contact_since, lease, sent.most) end
  fetch_again()
  local due_next = move_due()
  requests = {}
  next_turn = -1
  if sent.take > 0 and not sent.risky then take_requests(due_next) end
  -- Last, what all that has led to: the next script compares these counts with what is there, and a repetition of
  -- this call gets the same answer.
  if marking then
    text = write_slices(slices)
    call('HSET', header, 'slices', text, 'forgotten', format('%.0f', forgotten))
  end
  if own_delay > tonumber(fields.delay or 0) then call('HSET', header, 'delay', format('%.3f', own_delay)) end
  counts = {count('a:' .. worker, digits .. ' ' .. ids, 'done', counters.done, 'not_kept',
    counters.not_kept, 'seen', (fields.seen or 0) + sent.seen)}
end

-- This worker's lease is renewed before a sweep looks for the dead. A server that is full or read-only refuses this
-- first write, and then nothing has changed.
write_worker(worker, number, now + lease, own_delay, changed)
math.randomseed(clock % SECOND)  -- Redis begins each script with the same seed
return as_a_whole(carry_out, answer)
