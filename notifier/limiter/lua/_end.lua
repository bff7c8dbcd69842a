-- end_unsent: ends under `word` ('cancelled', 'superseded', 'dropped') what no worker holds and what has left its line.
-- user: nil where its meta names none. The rest: further fields of its hash, and their values. One that is queued stays
-- in its list, which can be long: *pull* passes over it.
local function end_unsent(now, id, origin, user, word, keep, ...)
  local key, whole = job_key(id), math.floor(now / 1000000)
  redis.call('ZREM', 'notifier:later', id)
  redis.call('ZREM', 'rq:scheduled:' .. origin, id)
  redis.call('HDEL', key, 'push_order')
  redis.call('HSET', key, 'status', 'canceled', 'push_outcome', word, ...)
  redis.call('EXPIRE', key, keep)
  redis.call('ZREMRANGEBYSCORE', 'rq:canceled:' .. origin, '-inf', whole - keep)
  redis.call('ZADD', 'rq:canceled:' .. origin, whole, id)
  redis.call('HINCRBY', 'notifier:stats', word, 1)
  if not user then return end
  redis.call('HINCRBY', 'notifier:usage:{' .. user .. '}', word, 1)
  redis.call('EXPIRE', 'notifier:usage:{' .. user .. '}', 2592000)
end
