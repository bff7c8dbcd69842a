-- leave_line: takes a job that no worker holds out of its user's line. Returns whether it stood there.
-- collapse_id: its push_collapse.
local function leave_line(now, user, category, id, collapse_id)
  if redis.call('ZREM', line_key(user, category), id) == 0 then return false end
  if collapse_id then forget_newcomer(user, category, id, collapse_id) end
  -- One who is parked has no gate; who stands behind this one may go by another route.
  local lane = redis.call('HGET', lines_key(user), category)
  if lane and redis.call('ZADD', 'notifier:gates:' .. lane, 'NX', text(now), user) == 1 then alarm(now) end
  return true
end

-- end_unsent: ends under `word` what is in no line and in no flight. The rest: further fields of its hash, and their
-- values. One that is queued stays in its list, which can be long: *pull* passes over it.
local function end_unsent(now, id, origin, word, keep, ...)
  local key, whole = job_key(id), math.floor(now / 1000000)
  redis.call('ZREM', 'notifier:later', id)
  redis.call('ZREM', 'rq:scheduled:' .. origin, id)
  redis.call('HDEL', key, 'push_order')
  redis.call('HSET', key, 'status', 'canceled', 'push_outcome', word, ...)
  redis.call('EXPIRE', key, keep)
  redis.call('ZREMRANGEBYSCORE', 'rq:canceled:' .. origin, '-inf', whole - keep)
  redis.call('ZADD', 'rq:canceled:' .. origin, whole, id)
end

-- tally: counts what became of a notification. user: nil where its meta names none.
local function tally(user, word)
  redis.call('HINCRBY', 'notifier:stats', word, 1)
  if not user then return end
  redis.call('HINCRBY', 'notifier:usage:{' .. user .. '}', word, 1)
  redis.call('EXPIRE', 'notifier:usage:{' .. user .. '}', 2592000)
end
