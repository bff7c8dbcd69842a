--! on_demand newest_rules idle_leaders serves note_due look_by wake_ups_due wake_leaders
--! needs text
-- Idle leaders: of the idle workers that serve the same lanes one leads. It sleeps until the next thing falls due
-- there.
--   @leaders         hash: the lanes of an idle leader, in ABC order with commas between -> µs until it sleeps
--   @leader:<lanes>  string: its name; @wake:<lanes>: the list on which it is woken, by the µs of what is due
-- Whoever makes something due earlier in one of these lanes notes that here, and wakes the leader. Lanes without an
-- idle leader are not in the hash: busy workers look by themselves. Beside them, because it is read at every call
-- anyway, stand #rules, the version of the rules that a worker took up last, #since, µs when that was, and #walked, the
-- #since that stood there when the last walk over all wake-ups began.
local newest_rules = {} -- {version, since}
local known_leaders -- lanes -> µs; both are read once in a call
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

-- note_due: something falls due at µs `at`; in `lane`, or where that is nil for whoever looks first.
local function note_due(at, lane)
  for lanes, till in pairs(idle_leaders()) do
    if at < tonumber(till) and (not lane or serves(lanes, lane)) then
      known_leaders[lanes] = text(at)
      redis.call('HSET', '@leaders', lanes, known_leaders[lanes])
      redis.call('DEL', '@wake:' .. lanes)
      redis.call('RPUSH', '@wake:' .. lanes, known_leaders[lanes])
    end
  end
end

-- look_by: a user is looked at in `lane` by µs `at`.
local function look_by(user, lane, at)
  redis.call('ZADD', '@wakeups:' .. lane, 'LT', text(at), user)
  note_due(at, lane)
end

local wake_ups_due = {} -- lane -> the earliest wake-up that was set here
local function wake_leaders()
  for lane, at in pairs(wake_ups_due) do note_due(at, lane) end
end
