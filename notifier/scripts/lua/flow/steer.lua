-- steer: writes what the caller has read of jobs that *pull* gave to it. *pull* gives none of them a second time.
-- ARGV 1.. for each: job id; the meta by its data, or '' if nothing limits it; the permit under which the caller has
--          leased it, or '' if it was left in its queue; the targets of a head that waits, see targets.lua, or ''
-- A meta that is no JSON, or that is missing, is kept in push_meta: *settle* restores it when it hands the job to RQ.
-- returns 1
-- The caller may have been stopped for long. A job that has moved on meanwhile keeps the meta by which it moved.
--! first_write
--! needs job_key
local GONE_ON = {scheduled = true, started = true}
for i = 1, #ARGV, 4 do
  local key, targets = job_key(ARGV[i]), ARGV[i + 3]
  local job = redis.call('HMGET', key, 'status', 'push_permit', 'push_order')
  local stands = ARGV[i + 2] == '' and not GONE_ON[job[1]] or ARGV[i + 2] ~= '' and job[2] == ARGV[i + 2]
  if targets ~= '' then -- a job without an order is another one that got this id meanwhile
    if job[3] then redis.call('HSET', key, 'push_targets', targets) end
  elseif stands and redis.call('EXISTS', key) == 1 then -- else it was deleted, or has been delivered
    redis.call('HSET', key, 'push_read', 1)
    if ARGV[i + 1] ~= '' then
      local stood = redis.call('HGET', key, 'meta') or ''
      if stood:sub(1, 1) ~= '{' then redis.call('HSETNX', key, 'push_meta', stood) end
      redis.call('HSET', key, 'meta', ARGV[i + 1])
      redis.call('HDEL', key, 'push_rq_job') -- an earlier job of this id was another function's
    end
  end
end
return 1
