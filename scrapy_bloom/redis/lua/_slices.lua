-- Part of add.lua and ask.lua: the layout of the filter, and the slices that `text` lists.
local listed = tonumber(again_field or 0)
local oldest = 1  -- the first slice that counts
@layout
-- plain begins
for capacity, rate, size in text:gmatch('(%d+):([^: ]+):(%d+)') do know(capacity, rate, size) end
-- plain ends
-- window begins
@window
-- window ends
