-- Take a batch of items out, in one call of a worker, and say for each item whether it was there.
-- A template: names after an at-sign are filled in for the layout of the filter and the size of its
-- probes.
--
-- KEYS[1]  the header
-- KEYS[2]  what the names of the other keys begin with
-- ARGV[1]  signature of the filter
-- ARGV[2]  worker
-- ARGV[3]  as for add.lua; the last two words are not used
-- ARGV[4]  the probes of all items in one string
--
-- Answers as add.lua does, but never "full".
@numbered
@slices
local probes, answers, forgotten = ARGV[4], {}, 0
local function carry_out()
  local position = 1
  while position <= #probes do
    local @probe, following = read(@format, probes, position)
    local found = '0'
    for index = #slices, 1, -1 do
      if take_out(index, @probe) then
        forgotten = forgotten + 1
        found = '1'
      end
    end
    answers[#answers + 1] = found
    position = following
  end
  -- Others learn of it by the change: see renew.lua.
  if forgotten > 0 then
    forgotten = forgotten + (call('HGET', header, 'forgotten') or 0)
    call('HSET', header, 'forgotten', forgotten)
  end
end

@carry_out
