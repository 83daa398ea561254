-- Whether items are there. Changes nothing.
--
-- ARGV[1]  epoch   ARGV[2]  the probes of the items
-- Answers {"ok", digits}: for each item 1 if it is there; {"gone"} or {"deleted"} as call.lua
local fields = call('HMGET', header, 'epoch', 'slices', 'window', 'deleted')
if fields[1] ~= ARGV[1] then return other_epoch(ARGV[1], fields[4]) end
local slices, probes, digits = divide(read_slices(fields[2], ARGV[1]), tonumber(fields[3])), ARGV[2], {}
for at = 1, #probes, PROBE_BYTES do
  local item = probes:sub(at, at + PROBE_BYTES - 1)
  digits[#digits + 1] = is_in_any(slices, item) and '1' or '0'
end
return {'ok', table.concat(digits)}
