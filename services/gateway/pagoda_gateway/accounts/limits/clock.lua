-- Which time it is for the counters, whatever happens to the clock of Redis' host. It comes before
-- counters.lua, in one script.
--
-- <prefix>clock is {now, offset, calendar, epoch}.
--
-- `now` (ms) runs as time does: windows, leases and ages are counted by it. It is Redis' clock and
-- an offset, which takes steps of that clock out. A step back is seen by itself. One forward is seen
-- by gateways: ARGV[2] has `least` and `most`, between which the time must be by what has passed
-- since they heard it, on a clock that nobody sets; and the generation of counters of whom they
-- heard it.
--
-- `calendar` (ms) says which day it is. It is Redis' clock, but does not go back, and follows a step
-- forward at twice the speed of time: a clock that is wrong for an hour begins no day more than an
-- hour early. When they are more than a day apart it is set, and a new epoch begins: what scopes
-- have spent of the day that it is now is asked of the ledger.

local prefix, operation, arguments = KEYS[1], ARGV[1], cjson.decode(ARGV[2])

local DAY_MS = 86400000
local TOLERANCE_MS = 1000 -- no step: a call that was on its way for long

local function day_of(ms) return math.floor(ms / DAY_MS) end

-- Months since 1970 of a day since 1970 (both UTC): civil calendar, counted from March 0000.
local function month_of(day)
  local shifted = day + 719468
  local era = math.floor(shifted / 146097)
  local of_era = shifted - era * 146097
  local year = math.floor((of_era - math.floor(of_era / 1460) + math.floor(of_era / 36524)
    - math.floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local march_month = math.floor((5 * of_year + 2) / 153)
  return (era * 400 + year) * 12 + march_month + 2 - 1970 * 12
end

local wall = arguments.wall
if not wall then
  local time = redis.call('TIME')
  wall = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Return between which times it is for who calls; nil if it does not know.
local function witness_of(generation, seen)
  local witness = arguments.witness
  if not witness or witness.generation ~= generation then return nil end
  local has_slept = witness.most < seen - TOLERANCE_MS
  return not has_slept and witness or nil
end

-- Return the time, and the offset by which it was found.
local function time_of(seen, offset, witness)
  local time = wall + offset
  if witness and time > witness.most + TOLERANCE_MS then time = witness.most end
  local earliest = math.max(seen, witness and witness.least or seen)
  if time < earliest - TOLERANCE_MS then time = earliest end
  return math.max(time, seen), time - wall
end

-- Return the calendar's time, and its epoch.
local function calendar_of(before, epoch, passed)
  local time = math.max(before, math.min(wall, before + 2 * passed))
  if math.abs(wall - time) > DAY_MS then return wall, epoch + 1 end
  return time, epoch
end

local now, calendar, epoch
do
  local kept, generation = unpack(redis.call('MGET', prefix .. 'clock', prefix .. 'generation'))
  local seen, offset = wall, 0
  calendar, epoch = wall, 0
  if kept then seen, offset, calendar, epoch = unpack(cmsgpack.unpack(kept)) end
  now, offset = time_of(seen, offset, witness_of(generation, seen))
  calendar, epoch = calendar_of(calendar, epoch, now - seen)
  redis.call('SET', prefix .. 'clock', cmsgpack.pack({now, offset, calendar, epoch}))
end

local today = day_of(calendar)
local this_month = month_of(today)

local function ms_to(day) return day * DAY_MS - math.min(calendar, wall) end

local function ms_to_next_day() return ms_to(today + 1) end

local function ms_to_next_month()
  local day = today
  repeat day = day + 1 until month_of(day) ~= this_month
  return ms_to(day)
end
