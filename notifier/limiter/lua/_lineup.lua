local HIGH = 1125899906842624 -- 2^50: a high priority's order lies below every normal arrival's

-- open_line: makes sure that the line of `category` is known, in the more urgent of its lane and `lane`, and
-- that a line which was empty is looked at now (its rules may admit what the user's gate does not know of).
-- rank: lane -> its place in the order of priority. Returns the line's lane and whether it is new.
local function open_line(now, user, category, lane, rank)
  local lines = lines_key(user)
  local standing = redis.call('HGET', lines, category)
  if standing and (rank[standing] or 99) <= (rank[lane] or 99) then return standing, false end
  redis.call('HSET', lines, category, lane)
  redis.call('ZADD', 'notifier:gates:' .. lane, 'LT', now, user)
  return lane, true
end

-- line_up: puts a job at its place in its user's line, from wherever it came: a queue, `later`, a dead worker.
-- Doing it twice changes nothing. Returns 'lined'; 'stock' for a job whose meta (plain JSON) names no user and
-- category; or nil where nothing is to be done (deleted, cancelled, or in flight under a lease).
local function line_up(now, id, rank)
  local key = job_key(id)
  local job = redis.call('HMGET', key, 'origin', 'meta', 'push_order', 'push_permit', 'status', 'push_deadline',
    'push_outcome')
  if not job[1] or job[4] or job[5] == 'canceled' then return nil end
  local ok, meta = pcall(cjson.decode, job[2] or '')
  if not ok or type(meta) ~= 'table' or type(meta.user) ~= 'string' or meta.user == '' then return 'stock' end
  local user, lane, category = meta.user, job[1], meta.category or 'default'
  if type(category) ~= 'string' or not string.match(category, '^[a-z0-9][a-z0-9_-]*$') then return 'stock' end

  local order = job[3] and tonumber(job[3])
  if not order then
    order = redis.call('INCR', 'notifier:seq')
    if job[7] then -- it had failed, and somebody requeued it: it starts afresh and no longer fades away
      redis.call('HDEL', key, 'push_outcome')
      redis.call('PERSIST', key)
    end
    if meta.priority == 'high' then order = order - HIGH end
    if type(meta.expires_in) == 'number' and not job[6] then
      -- A producer without our library cannot ask Redis for the time: its expiry runs from here.
      redis.call('HSET', key, 'push_deadline', now + math.floor(meta.expires_in * 1000000))
    end
  end

  local line_lane, fresh = open_line(now, user, category, lane, rank)
  local expected = now
  if not fresh then
    local gate = redis.call('ZSCORE', 'notifier:gates:' .. line_lane, user) or now
    local step = redis.call('HGET', lines_key(user), '#pace') or 0
    expected = math.max(now, gate + step * redis.call('ZCARD', line_key(user, category)))
  end
  redis.call('ZADD', line_key(user, category), order, id)
  redis.call('HSET', key, 'status', 'scheduled', 'push_order', order)
  redis.call('ZADD', 'rq:scheduled:' .. lane, expected / 1000000, id)
  return 'lined'
end
