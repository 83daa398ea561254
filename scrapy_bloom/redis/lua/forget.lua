-- Make a batch of items new once more, in one call of a worker, and say for each whether it was there.
-- A template: names after an at-sign are filled in for the layout of the filter and the size of its
-- probes.
--
-- KEYS[1]  the header
-- KEYS[2]  what the names of the other keys begin with
-- ARGV[1]  signature of the filter
-- ARGV[2]  worker
-- ARGV[3]  as for add.lua; the last two words are not used
-- ARGV[4]  the probes of all items in one string
-- ARGV[5...]  their fingerprints
--
-- Answers as add.lua does, but never "full".
@numbered
@slices
local probes, answers, forgotten = ARGV[4], {}, 0
local function carry_out()
  local position = 1
  while position <= #probes do
    local @probe, following = read(@format, probes, position)
    local raw, fingerprint = probes:sub(position, following - 1), ARGV[5 + #answers]
    local count = take_out(raw, fingerprint, @probe)
    for index = 1, #slices do call('HDEL', KEYS[2] .. slices[index].number .. '.ages', raw) end
    forgotten = forgotten + count
    answers[#answers + 1] = count > 0 and '1' or '0'
    position = following
  end
  -- Others learn of it by the change: see renew.lua.
  if forgotten > 0 then
    forgotten = forgotten + (call('HGET', header, 'forgotten') or 0)
    call('HSET', header, 'forgotten', forgotten)
  end
end

@carry_out
