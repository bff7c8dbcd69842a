-- cancel: ends a notification that has not been handed to a worker yet.
-- ARGV 1 clock  2 job id  3 keep_failed s
-- returns 'cancelled', 'sending' (too late: it is in flight), 'ended' (too late) or 'unknown'
--! include _clock _keys _alarm _end
local now, id, keep = now_us(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local key = job_key(id)
local job = redis.call('HMGET', key, 'origin', 'meta', 'push_permit', 'status', 'push_collapse', 'push_outcome')
if not job[1] then return redis.call('ZSCORE', 'notifier:delivered', id) and 'ended' or 'unknown' end
if job[3] then return 'sending' end
if job[4] == 'canceled' and (job[6] or 'cancelled') == 'cancelled' then return 'cancelled' end -- the same call again
if job[4] ~= 'queued' and job[4] ~= 'scheduled' then return 'ended' end

local ok, meta = pcall(cjson.decode, job[2] or '')
local user
if ok and type(meta) == 'table' and type(meta.user) == 'string' then
  local category = type(meta.category) == 'string' and meta.category or 'default'
  if redis.call('ZREM', line_key(meta.user, category), id) == 1 then
    -- One who is parked has no gate; who stands behind the cancelled one may go by another route.
    local lane = redis.call('HGET', lines_key(meta.user), category)
    if lane and redis.call('ZADD', 'notifier:gates:' .. lane, 'NX', text(now), meta.user) == 1 then alarm(now) end
    if job[5] then redis.call('HDEL', collapse_key(meta.user, category), job[5]) end
  end
  user = meta.user
end
end_unsent(now, id, job[1], user, 'cancelled', keep)
return 'cancelled'
