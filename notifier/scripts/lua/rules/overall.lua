--! on_demand overall_opens count_overall close_overall overall_key
--! needs date_sends note_due route_key text
-- Overall: the pace of a category for all users together, which the rule table has as its overall: {limit, µs}.
--   @overall:<category>  zset permit -> µs, as a user's sends: in the future while in flight, the settling time after
-- It counts messages, each as one, whatever it costs its user. Where it is full, the category is held as a route is
-- whose project is full, see routes.lua.
local MAX_AHEAD = 90000000 -- µs: so far a job that RQ runs is dated ahead: MONITORING_S and RQ_SPARE_S in workers/
local function overall_key(category) return '@overall:' .. category end

-- date_nearer: what is dated further ahead than it could be is of before Redis's clock was set back. Some of it may be
-- in flight still, for a lease at most.
local function date_nearer(look, key)
  local latest = text(look.now + look.lease_us + MAX_AHEAD)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. latest, '+inf')) do
    redis.call('ZADD', key, look.until_text, member)
  end
end

-- overall_opens: the first µs at which one more may go, and how many may then. What is in flight is taken to be
-- settled now: it counts from then on, and whoever comes at that time and finds it full waits once more.
local function overall_opens(look, rule, category)
  local now, key, limit, interval = look.now, overall_key(category), rule[1], rule[2]
  local room = limit - redis.call('ZCOUNT', key, '(' .. text(now - interval), '+inf')
  if room > 0 then return now, room end
  date_nearer(look, key)
  local rank = text(limit - 1)
  local leaves = math.min(redis.call('ZREVRANGE', key, rank, rank, 'WITHSCORES')[2], now)
  return leaves + interval, math.max(1, limit - redis.call('ZCOUNT', key, '(' .. text(leaves), '+inf'))
end

-- count_overall: what goes under `permit` counts from the end of the lease, until it is settled.
local function count_overall(look, rule, category, permit)
  local key = overall_key(category)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', text(look.now - rule[2]))
  date_sends(key, permit, 1, look.until_text, look.lease_us + rule[2])
end

-- close_overall: the permit becomes now, or is given back, and its place is free at once. late: it may have lapsed.
local function close_overall(rule, category, permit, reached, now, late)
  local gone = date_sends(overall_key(category), permit, 1, reached and text(now), late and rule[2])
  local held = route_key('overall:' .. category .. '|full')
  if gone > 0 and redis.call('EXISTS', held) == 1 then
    redis.call('HSET', held, 'until', text(now), 'room', gone)
    note_due(now)
  end
end
