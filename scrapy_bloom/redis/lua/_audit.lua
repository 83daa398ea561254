-- Part of _mark.lua for a filter with an audit. `audit_text` lists the items of the call that fall into
-- the sample, counted from 1; then, if the worker names a slice to add, a semicolon and two chances that
-- a new item is called seen: by the newest slice on average, while it filled; and by all slices that
-- there are, once another one is the newest.
--
-- The sample is a sorted set: the probe of each item of it that was asked about, and when that was last
-- so. The member '' is its sign of life. The header's field "audited" has six words: how many items of
-- the sample were new; how many of these the filter called seen; up to how many of the first is known
-- how many of the second were expected, and that number; the chance by the slices before the newest one;
-- "1" if the sample was lost, which ends the audit.
local sample, sampled = KEYS[2] .. 'sample', {}
for item in audit_text:match('^[%d ]*'):gmatch('%d+') do sampled[tonumber(item)] = true end
local own_rate, next_rate = audit_text:match(';(%S+) (%S+)$')
local touched = own_rate or next(sampled)
local audit = call('HMGET', KEYS[1], 'audited', 'rewindowed')
local checked, observed, folded, predicted, older_rate, ended =
  (audit[1] or '0 0 0 0 0 0'):match('^(%d+) (%d+) (%d+) (%S+) (%S+) (%d)$')
checked, observed, folded = tonumber(checked), tonumber(observed), tonumber(folded)
local asked_at = redis.call('TIME')
asked_at = string.format('%d.%06d', asked_at[1], asked_at[2])

local function begin_audit()
  if not next(sampled) then return end
  if not audit[1] then
    call('ZADD', sample, '+inf', '')
  elseif ended == '0' and not call('ZSCORE', sample, '') then
    ended, lost = '1', lost + 1
  end
  if ended == '1' then sampled = {} end
-- window begins
  -- What was asked about before all generations that are left. They may have been dated anew, if the
  -- clock was set; and since the window was changed all count as added then.
  local first = tonumber(rows[1][5])
  if window > 0 and first > tonumber(audit[2] or 0) then
    local old = string.format('(%.6f', first - 2 * life)
    local some = call('ZRANGEBYSCORE', sample, '-inf', old, 'LIMIT', '0', '1000')
    if #some > 0 then call('ZREM', sample, (table.unpack or unpack)(some)) end
  end
-- window ends
end

-- The newest slice gets a successor: take down how many errors were expected while it was the newest.
local function fold()
  local rate = older_rate + own_rate - older_rate * own_rate
  predicted = predicted + (checked - folded) * rate
  folded, older_rate = checked, oldest > newest and '0' or next_rate
end

local function keep_audit()
  if not touched then return end
  call('HSET', KEYS[1], 'audited', string.format('%d %d %d %.17g %s %s', checked, observed, folded,
    predicted, older_rate, ended))
end
