-- Part of scripts that make a numbered call, at their end: calls `carry_out`, which puts a digit into
-- `answers` for each item, and stores the answer of the call with the worker.
--
-- Redis takes nothing back when a script fails. So the call ends here, with an answer like every
-- other: if it were repeated, it would find what it has done itself.
status = 'ok'
local done, problem = pcall(carry_out)
if not done then status = 'broken' end
digits = table.concat(answers)
losses = losses + lost
-- window begins
keep()
-- window ends
redis.call('HSET', header, worker, number .. ' ' .. status .. ' ' .. digits, 'filled', filled,
  'slices', text, 'losses', losses)
local line = answer(last < answered and 1 or 0)
-- window begins
if status == 'ok' then return line .. lasts() end
-- window ends
if done then return line end
return line .. ' ' .. (type(problem) == 'table' and problem.err or tostring(problem))
