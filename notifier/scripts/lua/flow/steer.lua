-- steer: what the jobs are that *pull* has given to be read. It gives none of them a second time.
-- ARGV 1.. for each: job id, the meta that its data tells, or '' where nothing limits it; and the permit under
--          which the caller holds it, or '' where it was left in its queue
-- What stood in its meta and is no JSON, or that nothing did, is kept in push_meta: *settle* puts it back when it hands
-- the job to RQ.
-- returns 1
-- Nothing is said of a job that has gone on meanwhile, as the caller may have been stopped for long: where it stands
-- now goes by what was said then.
--! first_write
--! needs job_key
local GONE_ON = {scheduled = true, started = true}
for i = 1, #ARGV, 3 do
  local key = job_key(ARGV[i])
  local job = redis.call('HMGET', key, 'status', 'push_permit')
  local stands = ARGV[i + 2] == '' and not GONE_ON[job[1]] or ARGV[i + 2] ~= '' and job[2] == ARGV[i + 2]
  if stands and redis.call('EXISTS', key) == 1 then -- else it was deleted, or is delivered already
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
