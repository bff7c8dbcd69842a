-- cancel: ends a notification that has not been handed to a worker yet.
-- ARGV 1 clock  2 job id  3 keep_failed s
-- returns 'cancelled', 'sending' (too late: it is in flight), 'ended' (too late) or 'unknown'
--! include _clock _keys _alarm
local now, id, keep = now_us(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local key = job_key(id)
local job = redis.call('HMGET', key, 'origin', 'meta', 'push_permit', 'status')
if not job[1] then return redis.call('ZSCORE', 'notifier:delivered', id) and 'ended' or 'unknown' end
if job[3] then return 'sending' end
if job[4] == 'canceled' then return 'cancelled' end -- the same call again
if job[4] ~= 'queued' and job[4] ~= 'scheduled' then return 'ended' end

local ok, meta = pcall(cjson.decode, job[2] or '')
if ok and type(meta) == 'table' and type(meta.user) == 'string' then
  local category = type(meta.category) == 'string' and meta.category or 'default'
  if redis.call('ZREM', line_key(meta.user, category), id) == 1 then
    -- One who is parked has no gate; who stands behind the cancelled one may go by another route.
    local lane = redis.call('HGET', lines_key(meta.user), category)
    if lane and redis.call('ZADD', 'notifier:gates:' .. lane, 'NX', text(now), meta.user) == 1 then alarm(now) end
  end
  redis.call('HINCRBY', 'notifier:usage:{' .. meta.user .. '}', 'cancelled', 1)
  redis.call('EXPIRE', 'notifier:usage:{' .. meta.user .. '}', 2592000)
end
redis.call('ZREM', 'notifier:later', id)
redis.call('ZREM', 'rq:scheduled:' .. job[1], id)
-- A queued job stays in its list, which can be long: *pull* passes over what is cancelled.
redis.call('HDEL', key, 'push_order')
redis.call('HSET', key, 'status', 'canceled', 'push_outcome', 'cancelled')
redis.call('EXPIRE', key, keep)
local whole = math.floor(now / 1000000)
redis.call('ZREMRANGEBYSCORE', 'rq:canceled:' .. job[1], '-inf', whole - keep)
redis.call('ZADD', 'rq:canceled:' .. job[1], whole, id)
redis.call('HINCRBY', 'notifier:stats', 'cancelled', 1)
return 'cancelled'
