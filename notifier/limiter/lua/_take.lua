-- take: leases the head `id` of a line to `worker` under `permit`. Returns what the worker needs to send it, or
-- nil where the job was deleted or cancelled meanwhile: it has left the line, and nothing else is to be done.
local function take(now, until_text, worker, line, user, category, id, permit)
  local key = job_key(id)
  local job = redis.call('HMGET', key, 'data', 'origin', 'status', 'push_deadline', 'push_attempts',
    'push_crashes', 'push_answered')
  redis.call('ZREM', line, id)
  if not job[1] or not job[2] or job[3] == 'canceled' then
    if job[2] then redis.call('ZREM', 'rq:scheduled:' .. job[2], id) end
    return nil
  end
  if job[3] == 'scheduled' then redis.call('ZREM', 'rq:scheduled:' .. job[2], id) end
  -- RQ fails what it finds expired in its started registry; the lease of ours is the one that ends.
  redis.call('ZADD', 'rq:wip:' .. job[2], '+inf', id .. ':' .. permit)
  redis.call('ZADD', 'notifier:leases', until_text, id)
  redis.call('HSET', key, 'status', 'started', 'push_permit', permit, 'worker_name', worker)
  local deadline = tonumber(job[4])
  return {id, permit, user, category, job[1], deadline and deadline - now or false,
    job[5] or '0', job[6] or '0', job[7] or false}
end
