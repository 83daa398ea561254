-- Whether items are there. Changes nothing.
--
-- ARGV[1]  epoch   ARGV[2]  the probes of the items
-- Answers {"ok", digits, now}: for each item 1 if it is there, and the server's time; {"gone"} or {"deleted"} as call.lua
local found = call('HMGET', header, 'epoch', 'slices', 'window', 'deleted')
if found[1] ~= ARGV[1] then return other_epoch(ARGV[1], found[4]) end
local slices, probes, digits = divide(read_slices(found[2], ARGV[1]), tonumber(found[3])), ARGV[2], {}
for at = 1, #probes, PROBE_BYTES do
  aim(probes, at)
  local digit = '0'
  for i = #slices, 1, -1 do
    local slice = slices[i]
    local raw = slice.again > 0 and probes:sub(at, at + PROBE_BYTES - 1)
    if has(slice) and not (raw and call('SISMEMBER', slice.name .. 'again', raw) == 1) then
      digit = '1'
      break
    end
  end
  digits[#digits + 1] = digit
end
return {'ok', table.concat(digits), string.format('%.6f', now)}
