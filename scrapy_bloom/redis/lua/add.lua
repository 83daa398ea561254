-- Add a batch of items, in one call of a worker, and say for each item whether it was there.
-- A template: names after an at-sign are filled in for the layout of the filter and the size of its
-- probes.
--
-- KEYS[1]  the header
-- KEYS[2]  what the names of the filter's segments begin with
-- ARGV[1]  signature of the filter
-- ARGV[2]  worker
-- ARGV[3]  four words: number of this call; number of the last call whose answer the worker has;
--          "1" to look for lost segments, else "0"; how many slices the worker knows of, "-" if it
--          names none to add
-- ARGV[4]  the probes of all items in one string
-- ARGV[5]  the slice to add when all are full, if the worker names one
-- ARGV[6]  ITEM:SECONDS for each item with a greatest age, counted from 1; only if there are any
--
-- Answers one string, because clients are slow to read many:
--     "ok LOSSES BACK DIGITS"           LOSSES: how often segments were lost. BACK: 1 if the server
--                                       has gone back to an older state, else 0. DIGITS: for each
--                                       item 1 if it was there, else 0. With dates then follow
--                                       the seconds until something is forgotten next.
--     "full LOSSES BACK DIGITS SLICES"  the items that have no digit need a slice that the worker
--                                       must name. SLICES: all slices that there are.
--     "due LOSSES BACK DIGITS SLICES"   likewise, with dates only: for a new generation
--     "broken LOSSES BACK DIGITS ERROR" an error ended the call: the items that have no digit are not
--                                       marked, but for the first of them, which may be.
--     "stale"                           a later call of this worker was answered before
--     "stranger"                        the worker is not registered
--     "other"                           the filter is not there
-- A call that was answered before gets the same answer and changes nothing.
@numbered
@slices
local probes, ages_text = ARGV[4], ARGV[6]

if look_for_losses == '1' then look(floor(number / 1000)) end
local answers = {}
@mark
local carry_out = mark
@carry_out
