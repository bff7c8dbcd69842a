-- cancel: ends a notification that has not been handed to a worker yet.
-- ARGV 1 clock  2 job id  3 keep_failed s
-- returns 'cancelled', 'sending' (too late: it is in flight), 'ended' (too late) or 'unknown'
--! include _clock _keys _alarm _newcomer _end
local now, id, keep = now_us(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local key = job_key(id)
local job = redis.call('HMGET', key, 'origin', 'meta', 'push_permit', 'status', 'push_collapse', 'push_outcome',
  'push_arriving')
if not job[1] then return redis.call('ZSCORE', 'notifier:delivered', id) and 'ended' or 'unknown' end
if job[3] then return 'sending' end
if job[4] == 'canceled' and (job[6] or 'cancelled') == 'cancelled' then return 'cancelled' end -- the same call again
if job[4] ~= 'queued' and job[4] ~= 'scheduled' then return 'ended' end

local ok, meta = pcall(cjson.decode, job[2] or '')
local user
if ok and type(meta) == 'table' and type(meta.user) == 'string' then
  user = meta.user
  leave_line(now, user, type(meta.category) == 'string' and meta.category or 'default', id, job[5])
  if job[7] then redis.call('ZREM', arriving_key(user), id) end
end
end_unsent(now, id, job[1], 'cancelled', keep)
tally(user, 'cancelled')
return 'cancelled'
