-- Say for each item of a batch whether it is there. Writes nothing.
-- A template: names after an at-sign are filled in for the layout of the filter and the size of its
-- probes.
--
-- KEYS[1]  the header
-- KEYS[2]  what the names of the filter's segments begin with
-- ARGV[1]  signature of the filter
-- ARGV[2]  the probes of all items in one string
--
-- Answers {"ok", a digit for each item: 1 if it is there, else 0}
--     or  {"other"} if the filter is not there.
local state = redis.call('HMGET', KEYS[1], 'signature', 'slices', 'again')
if state[1] ~= ARGV[1] then return {'other'} end
local text, again_field = state[2], state[3]

@slices
local probes, answers, position = ARGV[2], {}, 1
while position <= #probes do
  local @probe, following = read(@format, probes, position)
  local seen = '0'
  for index = #slices, oldest, -1 do
    if has(index, @probe) then
      seen = '1'
      break
    end
  end
  if listed > 0 and seen == '1' and is_again(probes:sub(position, following - 1)) then seen = '0' end
  answers[#answers + 1] = seen
  position = following
end
return {'ok', table.concat(answers)}
