-- Part of add.lua and ask.lua: the layout of the filter, and the slices that `text` lists.
@layout
for capacity, rate, size in text:gmatch('(%d+):([^: ]+):(%d+)') do know(capacity, rate, size) end
