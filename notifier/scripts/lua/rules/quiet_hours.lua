--! on_demand by_the_clock
--! needs history job_key nth number text
-- Quiet hours and calendar windows go by the user's local time. zones.py does the same in Python, and explains it.
-- A policy may have
--   quiet     {{from, to, every}, …}: quiet hours, and the times outside the send hours. In µs since midnight, or since
--             Monday's midnight if `every` is a week; without `every` it is a day
--   calendar  {{limit, unit}, …}: calendar windows; unit 'day', 'week' or 'month'
-- If any policy has one of them, the rule table has clock {version: of the zone data, zone: for users without one,
-- lead_us: µs that must be left before quiet hours begin, of_users: true if only users chose such rules; their zones
-- are in @zones:users then}. A user's quiet hours do not hold a category with ignores_quiet.
--   @zones  hash zone -> {v: version, s: since µs, …, o: offset µs, …, u: until µs, m: first day of a month, …}
--   An entry covers three years. *pull* tells a worker that a zone is missing, and the worker writes it.
-- In a job's hash: push_zone, if the job names a zone; push_since: µs at which it first entered its backlog.
-- A job that entered before any such rule existed has no push_since: it has waited since it was accepted, or, if that
-- is unknown too, since now.
local DAY, MARGIN = 86400000000, 3456000000000
local THURSDAY = 3 * DAY -- since Monday: 1 January 1970 was a Thursday

local function index_of(zone, at)
  for i = #zone.s, 2, -1 do
    if zone.s[i] <= at then return i end
  end
  return 1
end

-- first_outside: the first µs from `at` on at which the local time is not between `from` and `to`.
local function first_outside(zone, from, to, at, every)
  every = every or DAY
  while true do
    local i = index_of(zone, at)
    local wall = (at + zone.o[i] + THURSDAY) % every
    if (wall - from) % every >= (to - from) % every then return at end
    local ends, change = at + (to - wall) % every, zone.s[i + 1]
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
  elseif unit == 'week' then day = day + 7 - (day + THURSDAY / DAY) % 7
  else day = month_after(zone, day) end
  return first_reading(zone, day * DAY)
end

local zones = {}
-- zone_of: a zone's table, or false if Redis has none that is exact around now and as new as the caller's data.
local function zone_of(rules, name, now)
  local zone = zones[name]
  if zone == nil then
    local said = redis.call('HGET', rules.clock.of_users and '@zones:users' or '@zones', name)
    zone = said and cjson.decode(said)
    local is_exact = zone and now >= zone.s[1] + MARGIN and now < zone.u - MARGIN
    if zone and (zone.v < rules.clock.version or not is_exact) then zone = false end
    zones[name] = zone
  end
  return zone
end

local SPANS = {day = DAY, week = 7 * DAY, month = 31 * DAY}
local function pace_after_quiet(policy)
  local shortest, pace = math.huge, 0
  local function narrow(limit, interval)
    if interval < shortest then shortest, pace = interval, math.ceil(interval / limit) end
  end
  local windows = policy.windows or {}
  for i = 1, #windows, 2 do narrow(windows[i], windows[i + 1]) end
  for _, window in ipairs(policy.calendar or {}) do narrow(window[1], SPANS[window[2]]) end
  return math.max(pace, policy.gap or 0)
end

-- quiet_of: the quiet hours that apply to the head of a backlog: its user's and its category's.
local function quiet_of(user_policy, backlog)
  local quiet = {}
  for _, hours in ipairs(not backlog.of.ignores_quiet and user_policy.quiet or {}) do
    quiet[#quiet + 1] = hours
  end
  for _, hours in ipairs(backlog.policy.quiet or {}) do quiet[#quiet + 1] = hours end
  return quiet
end

-- by_the_clock: the first µs from `at` on at which quiet hours and calendar windows let the head of a backlog go. at:
-- when the other rules let it go. Returns nil and the name of the zone if that zone is missing. Sets backlog.by to the
-- rule that decides, see *set_wake_ups*. backlog.arrives: {zone or nil, µs} of a new head whose hash is not written
-- yet.
local function by_the_clock(rules, user, backlog, at, now)
  local quiet, calendar = quiet_of(user.policy, backlog), user.policy.calendar or backlog.policy.calendar
  if not (calendar or quiet[1]) then return at end
  local head = backlog.arrives or redis.call('HMGET', job_key(backlog.head), 'push_zone', 'push_since', 'push_history')
  local name = head[1] and head[1] ~= '' and head[1] or backlog.zone or rules.clock.zone
  local zone = zone_of(rules, name, now)
  if not zone then return nil, name end
  local scopes = {{user.sent, user.policy}, {backlog.sent, backlog.policy}}
  local since = number(head[2]) or history.accepted_at(head[3]) or now
  at = math.max(at, now)
  for i, scope in ipairs(scopes) do
    for _, window in ipairs(scope[2].calendar or {}) do
      -- One more may go on the day after the day of the limit-th latest send.
      local latest = nth(scope[1], scope[2], math.max(1, window[1] - backlog.cost + 1), redis.call('ZCARD', scope[1]))
      local opens = latest and next_start(zone, window[2], tonumber(latest)) or 0
      if opens > at then at, backlog.by = opens, (i == 1 and 'u' or 'c') .. text(window[1]) .. '/' .. window[2] end
    end
  end
  for _ = 1, quiet[1] and 2 + 8 * #quiet or 0 do -- quiet hours may begin where others end, on each day of a week
    local opens, waited = at, false
    for _, hours in ipairs(quiet) do
      local begins = first_outside(zone, hours[2], hours[1], opens, hours[3])
      if begins < opens + rules.clock.lead_us then opens = first_outside(zone, hours[1], hours[2], begins, hours[3]) end
    end
    for _, hours in ipairs(quiet) do
      waited = waited or first_outside(zone, hours[2], hours[1], since, hours[3]) < opens
    end
    for _, scope in ipairs(waited and scopes or {}) do
      local last = nth(scope[1], scope[2], 1, redis.call('ZCARD', scope[1]))
      if last then opens = math.max(opens, last + pace_after_quiet(scope[2])) end
    end
    if opens == at then break end
    at, backlog.by = opens, 'q'
  end
  return math.min(at, zone.u - MARGIN) -- at the table's end a newer one is asked
end
