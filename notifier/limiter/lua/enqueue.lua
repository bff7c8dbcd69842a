-- enqueue: accepts notifications as RQ jobs, each exactly once however often the call is repeated.
-- ARGV 1 clock  2 dedupe_for ms  3 job timeout s  4 now as RQ writes it (ISO 8601)
--      5.. for each: job id, lane, data, meta, µs until it expires or '', µs of its own time or '',
--          dedupe key (with its user) or '', targets (see _limits.lua) or ''
-- returns the job ids: the one given, or that of an earlier notification with the same dedupe key
--! include _clock _keys _alarm
local now, dedupe_for, timeout, stamp = now_us(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local reply, seen = {}, {}
local recording = redis.call('EXISTS', 'notifier:trace') == 1

local function accept(id, lane, data, meta, expires_in, send_at, dedupe, targets)
  if dedupe ~= '' then
    local key = 'notifier:dedupe:' .. dedupe
    if not redis.call('SET', key, id, 'NX', 'PX', dedupe_for) then
      return redis.call('GET', key) -- this very id, where it is the same call again
    end
  end
  local key = job_key(id)
  -- The producer's connection may have broken between the call and the reply: this is the same call again.
  if redis.call('EXISTS', key) == 1 or redis.call('ZSCORE', 'notifier:delivered', id) then return id end
  local at = tonumber(send_at)
  if at and at <= now then at = nil end
  redis.call('HSET', key, 'created_at', stamp, 'enqueued_at', stamp, 'origin', lane, 'data', data, 'meta', meta,
    'description', 'notifier.deliver', 'timeout', timeout, 'status', at and 'scheduled' or 'queued')
  if targets ~= '' then redis.call('HSET', key, 'push_targets', targets) end
  if expires_in ~= '' then redis.call('HSET', key, 'push_deadline', (at or now) + tonumber(expires_in)) end
  if at then
    redis.call('ZADD', 'rq:scheduled:' .. lane, seconds(at), id)
    redis.call('ZADD', 'notifier:later', at, id)
    alarm(at)
  else
    redis.call('RPUSH', 'rq:queue:' .. lane, id)
  end
  if not seen[lane] then
    seen[lane] = true
    redis.call('SADD', 'rq:queues', 'rq:queue:' .. lane)
  end
  redis.call('HINCRBY', 'notifier:stats', 'accepted', 1)
  if recording then redis.call('XADD', 'notifier:trace', '*', 'at', at or now, 'meta', meta, 'expires', expires_in) end
  return id
end

for i = 5, #ARGV, 8 do reply[#reply + 1] = accept(unpack(ARGV, i, i + 7)) end
return reply
