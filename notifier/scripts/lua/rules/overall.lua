--! on_demand overall_opens count_overall close_overall overall_key
--! needs date_sends note_due route_key text
-- Overall: the rate of a category for all users together; `overall` of the rule table: {limit, µs}.
--   @overall:<category>  zset permit -> µs, as a user's sends: in the future while in flight, the settling time after
-- A message counts as one, whatever it costs its user. While the rate is used up, the category is held like a route
-- whose project is full, see routes.lua.
local MAX_AHEAD = 90000000 -- µs that a job run by RQ is dated ahead: MONITORING_S and RQ_SPARE_S in workers/
local function overall_key(category) return '@overall:' .. category end

-- date_nearer: sends that are dated further ahead than possible were dated before Redis's clock was set back. They may
-- still be in flight, for one lease at most, so they are dated at its end.
local function date_nearer(look, key)
  local latest = text(look.now + look.lease_us + MAX_AHEAD)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. latest, '+inf')) do
    redis.call('ZADD', key, look.until_text, member)
  end
end

-- overall_opens: the first µs at which one more may go, and how many may go then. It assumes that sends in flight are
-- settled now; if they are settled later, the caller finds the rate used up again and waits once more.
local function overall_opens(look, rule, category)
  local now, key, limit, interval = look.now, overall_key(category), rule[1], rule[2]
  local room = limit - redis.call('ZCOUNT', key, '(' .. text(now - interval), '+inf')
  if room > 0 then return now, room end
  date_nearer(look, key)
  local rank = text(limit - 1)
  local leaves = math.min(redis.call('ZREVRANGE', key, rank, rank, 'WITHSCORES')[2], now)
  return leaves + interval, math.max(1, limit - redis.call('ZCOUNT', key, '(' .. text(leaves), '+inf'))
end

-- count_overall: counts a permit, dated at the end of its lease until it is settled.
local function count_overall(look, rule, category, permit)
  local key = overall_key(category)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', text(look.now - rule[2]))
  date_sends(key, permit, 1, look.until_text, look.lease_us + rule[2])
end

-- close_overall: dates a permit at now, or gives it back so that another may go at once. late: it may have lapsed.
local function close_overall(rule, category, permit, reached, now, late)
  local gone = date_sends(overall_key(category), permit, 1, reached and text(now), late and rule[2])
  local held = route_key('overall:' .. category .. '|full')
  if gone > 0 and redis.call('EXISTS', held) == 1 then
    redis.call('HSET', held, 'until', text(now), 'room', gone)
    note_due(now)
  end
end
