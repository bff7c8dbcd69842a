--! on_demand end_failed
--! needs is_text job_key
-- end_failed: ends a job as failed. RQ keeps it for `keep` s. reason: as RQ stores it.
local function end_failed(now, id, origin, word, reason, keep, worker)
  local key, results, expires = job_key(id), '@rq:results:' .. id, math.floor(now / 1000000) + keep
  redis.call('HDEL', key, 'push_permit', 'push_order', 'push_deadline', 'push_crashes', 'push_begun',
    'push_answered', 'push_refusals', 'push_orphan', 'push_counted', 'push_returned', 'push_again')
  redis.call('HSET', key, 'status', 'failed', 'push_outcome', word)
  redis.call('EXPIRE', key, keep)
  redis.call('ZREM', '@rq:canceled:' .. origin, id) -- RQ's own cancel came too late
  -- With an id that is no text, RQ's tools could not list the registry at all.
  if is_text(id) then redis.call('ZADD', '@rq:failed:' .. origin, expires, id) end
  redis.call('XADD', results, 'MAXLEN', 10, '*', 'type', 2, 'worker_name', worker, 'exc_string', reason)
  redis.call('EXPIRE', results, keep)
end
