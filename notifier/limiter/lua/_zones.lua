-- Quiet hours and calendar windows go by the clock on the user's wall; zones.py has the same, and says what it means.
-- A policy may have q {from, to}: quiet hours, µs since midnight; d {{limit, unit}, …}: calendar windows, unit 'day',
-- 'week' or 'month'. Where one has, the rules have z {v: version of the zones' data, n: the zone of who names none,
-- l: µs that must be left until quiet hours begin}, and i {category: true if it ignores the user's quiet hours}.
--   notifier:zones  hash zone -> {v: version, s: since µs, …, o: offset µs, …, u: until µs, m: first day of a month, …},
--   of three years. Written by --   whoever is told by *admit* that a zone is missing. It is there once a rule goes by the clock.
-- In a job's hash: push_zone, if it names one; push_since: µs at which it first entered its line.
local DAY, MARGIN = 86400000000, 3456000000000

local function index_of(zone, at)
  for i = #zone.s, 2, -1 do
    if zone.s[i] <= at then return i end
  end
  return 1
end

local function first_outside(zone, from, to, at)
  while true do
    local i = index_of(zone, at)
    local wall = (at + zone.o[i]) % DAY
    if (wall - from) % DAY >= (to - from) % DAY then return at end
    local ends, change = at + (to - wall) % DAY, zone.s[i + 1]
    if not change or ends < change then return ends end
    at = change
  end
end

local function first_reading(zone, wall)
  for i = 1, #zone.s do
    local at, change = math.max(zone.s[i], wall - zone.o[i]), zone.s[i + 1]
    if not change or at < change then return at end
  end
end

local function month_after(zone, day)
  for _, first in ipairs(zone.m) do
    if first > day then return first end
  end
end

local function next_start(zone, unit, at)
  local day = math.floor((at + zone.o[index_of(zone, at)]) / DAY)
  if unit == 'day' then day = day + 1
  elseif unit == 'week' then day = day + 7 - (day + 3) % 7
  else day = month_after(zone, day) end
  return first_reading(zone, day * DAY)
end
