--! on_demand newest_rules idle_leaders serves note_due look_by wake_ups_due wake_leaders
--! needs text
-- Idle leaders: one of the idle workers that serve the same lanes leads. It sleeps until the next wake-up or job in
-- these lanes falls due.
--   @leaders         hash: lanes of an idle leader, sorted, with commas between -> µs until which it sleeps
--   @leader:<lanes>  string: the leader's name
--   @wake:<lanes>    list on which the leader is woken; an entry is the µs at which something is due
-- A script that makes something due earlier in one of these lanes writes the new time here and wakes the leader. Lanes
-- without an idle leader are not in the hash: busy workers look by themselves. Because every call reads the hash, it
-- also has #rules, the version of the rules that a worker followed last, #since, µs when it began to, and #walked, the
-- value of #since when the last walk over all wake-ups began.
local newest_rules = {} -- {version, since}
local known_leaders -- lanes -> µs; a call reads both tables once
local function idle_leaders()
  if known_leaders then return known_leaders end
  local fields = redis.call('HGETALL', '@leaders')
  known_leaders = {}
  for i = 1, #fields, 2 do known_leaders[fields[i]] = fields[i + 1] end
  newest_rules.version, newest_rules.since = known_leaders['#rules'], tonumber(known_leaders['#since'])
  known_leaders['#rules'], known_leaders['#since'], known_leaders['#walked'] = nil, nil, nil
  return known_leaders
end

local function serves(lanes, lane) return string.find(',' .. lanes .. ',', ',' .. lane .. ',', 1, true) ~= nil end

-- note_due: wakes leaders that sleep beyond µs `at`, when something falls due: in `lane`, or in any lane if it is nil.
local function note_due(at, lane)
  for lanes, till in pairs(idle_leaders()) do
    if at < tonumber(till) and (not lane or serves(lanes, lane)) then
      known_leaders[lanes] = text(at)
      redis.call('HSET', '@leaders', lanes, known_leaders[lanes])
      local list = '@wake:' .. lanes
      if redis.call('RPUSH', list, known_leaders[lanes]) > 1 then redis.call('LTRIM', list, '-1', '-1') end
      redis.call('EXPIRE', list, '60') -- the leader may have died: nobody hears it then
    end
  end
end

-- look_by: makes a user due in `lane` at µs `at` or earlier.
local function look_by(user, lane, at)
  redis.call('ZADD', '@wakeups:' .. lane, 'LT', text(at), user)
  note_due(at, lane)
end

local wake_ups_due = {} -- lane -> the earliest wake-up that was set here
local function wake_leaders()
  for lane, at in pairs(wake_ups_due) do note_due(at, lane) end
end
