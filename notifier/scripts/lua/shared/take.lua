-- read_job: what the head `id` of a line needs to go, or nil where the job was deleted or cancelled meanwhile (by RQ:
-- *sweep* ends it).
local function read_job(id)
  local job = redis.call('HMGET', job_key(id), 'data', 'origin', 'status', 'push_deadline', 'push_attempts',
    'push_crashes', 'push_answered', 'push_targets', 'push_collapse', 'push_count', 'push_refusals')
  if not job[2] or job[3] == 'canceled' then return nil, job[2] end
  return {data = job[1] or '', origin = job[2], status = job[3], deadline = number(job[4]),
    attempts = number(job[5]) or 0,
    crashes = number(job[6]) or 0, answered = job[7], targets = job[8], collapse = job[9], count = number(job[10]),
    refusals = number(job[11])}
end

-- take: leases the head `id` of a line to `worker` under `permit`. Returns what the worker needs to send it. shut: the
-- routes it is not to go by now, or false. dropped: the rules hold it back, and its category lets nothing wait.
local function take(now, until_text, worker, line, user, category, id, permit, job, shut, dropped)
  redis.call('ZREM', line, id)
  if job.status == 'scheduled' then gather('ZREM', '@rq:scheduled:' .. job.origin, id) end
  -- RQ fails what it finds expired in its started registry; the lease of ours is the one that ends.
  gather('ZADD', '@rq:wip:' .. job.origin, '+inf', id .. ':' .. permit)
  gather('ZADD', '@leases', until_text, id)
  if job.deadline then gather('ZREM', '@expiring', id) end
  if job.collapse then forget_newcomer(user, category, id, job.collapse) end
  redis.call('HSET', job_key(id), 'status', 'started', 'push_permit', permit, 'worker_name', worker)
  return {id, permit, user, category, job.data, job.deadline and job.deadline - now or false,
    job.attempts, job.crashes, job.answered or false, shut, job.count or (dropped or job.refusals) and 1 or nil,
    (dropped or job.refusals) and (dropped and 1 or 0) or nil, job.refusals}
end
