-- Who has requests in flight.
--
-- Answers {"ok", NOW, worker, COUNT, START, ...}: how many of the first 500, and when the first of these was to be sent.
--            Times in microseconds
read_clock(call('HGET', header, 'well') or '0 0 0 0', 1)
local counts, starts, cursor, seen = {}, {}, '0', 0
repeat
  local portion = call('HSCAN', taken, cursor, 'COUNT', PORTION)
  cursor = portion[1]
  for i = 1, #portion[2], 2 do
    local worker, start = portion[2][i]:sub(1, -9), read_taken(portion[2][i + 1])
    counts[worker], seen = (counts[worker] or 0) + 1, seen + 1
    starts[worker] = math.min(starts[worker] or start, start)
  end
until cursor == '0' or seen >= PORTION
local answer = {'ok', format_time(clock)}
for worker, some in pairs(counts) do
  answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = worker, some, format_time(starts[worker])
end
return answer
