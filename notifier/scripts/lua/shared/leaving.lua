--! exports is_leaving away_key put_aside
-- Who is on the way to another shard, or has gone there: what falls due for them here is put aside, and goes after
-- them.
--   @away:{user}  hash category -> lane, what @lines:{user} was: without that, nobody here sends
local moving -- looked up once in a call
local function is_leaving(user)
  if moving == nil then moving = redis.call('EXISTS', '@moves') == 1 end
  local at = moving and redis.call('HGET', '@moves', user)
  return at and at ~= '=' and at ~= ''
end

local function away_key(user) return '@away:{' .. user .. '}' end

-- put_aside: a job at its place in a backlog that nobody here sends from.
local function put_aside(now, id, user, category, origin, order)
  redis.call('HSET', away_key(user), category, origin)
  redis.call('ZADD', backlog_key(user, category), order, id)
  redis.call('HSET', job_key(id), 'push_order', order, 'status', 'scheduled')
  redis.call('ZADD', '@rq:scheduled:' .. origin, seconds(now), id)
end
