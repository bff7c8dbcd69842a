-- steer: what the jobs are that *pull* has given to be read. It gives none of them a second time.
-- ARGV 1.. for each: job id, the meta that its data tells, or '' where it is no notification
-- returns 1
--! include keys full
for i = 1, #ARGV, 2 do
  local key = job_key(ARGV[i])
  if redis.call('EXISTS', key) == 1 then -- else it was deleted, or is delivered already
    redis.call('HSET', key, 'push_read', 1)
    if ARGV[i + 1] ~= '' then
      redis.call('HSET', key, 'meta', ARGV[i + 1])
      redis.call('HDEL', key, 'push_rq_job') -- an earlier job of this id was another function's
    end
  end
end
return 1
