--! on_demand leave_backlog free_dedupe end_unsent tally end_cancelled UNSENT was_taken
--! needs add_to_minute arriving_key backlog_key backlogs_key ends forget_candidate job_key note_due text waits
-- Ends jobs that are not sent, wherever they wait.
-- The outcomes of jobs that the scripts cancel. A job with another outcome failed, was requeued, and RQ cancelled it.
local UNSENT = {cancelled = true, dropped = true, superseded = true}

-- was_taken: whether a device has received it. answered: its push_answered.
local function was_taken(answered) return answered and answered:find('"delivered"', 1, true) ~= nil end

-- leave_backlog: takes a job that no worker holds out of its user's backlog. Returns whether it was there. collapse_id:
-- its push_collapse.
local function leave_backlog(now, user, category, id, collapse_id)
  local backlog = backlog_key(user, category)
  local place = redis.call('ZRANK', backlog, id)
  if not place then return false end
  redis.call('ZREM', backlog, id)
  waits.add(waits.why(user, category), -1)
  redis.call('ZREM', '@expiring', id)
  if collapse_id then forget_candidate(user, category, id, collapse_id) end
  -- The new head may go earlier than the old one could: it may have another route, device or zone.
  local lane = place == 0 and redis.call('HGET', backlogs_key(user), category)
  if lane and redis.call('ZADD', '@wakeups:' .. lane, 'LT', 'CH', text(now), user) == 1 then note_due(now, lane) end
  return true
end

-- free_dedupe: frees the dedupe key of a job that reached nobody, for another notification. A job with which a worker
-- died may have reached its user, so it keeps the key.
local function free_dedupe(id, key)
  local dedupe, may_have_reached, crashes = unpack(redis.call('HMGET', key, 'push_dedupe', 'push_sent', 'push_crashes'))
  if not dedupe or may_have_reached or crashes then return end
  if redis.call('GET', '@dedupe:' .. dedupe) == id then redis.call('DEL', '@dedupe:' .. dedupe) end
end

-- end_unsent: ends a job that is in no backlog and not in flight. Further fields of its hash, with their values, may
-- follow as arguments. A queued job stays in its queue, which can be long, until *pull* takes it.
local function end_unsent(now, id, origin, word, ...)
  local key, whole = job_key(id), math.floor(now / 1000000)
  redis.call('ZREM', '@later', id) -- first, as it takes no memory: a full Redis lets a script go on that has written
  ends.tell(now, id, word, select(2, ...))
  redis.call('ZREM', '@rq:scheduled:' .. origin, id)
  free_dedupe(id, key)
  redis.call('HDEL', key, 'push_order')
  redis.call('HSET', key, 'status', 'canceled', 'push_outcome', word, ...)
  redis.call('EXPIRE', key, ends.failed)
  -- The score: until when the job is kept, as in RQ's failed registry. RQ's cancel writes the present: *sweep* sees it.
  redis.call('ZADD', '@rq:canceled:' .. origin, whole + ends.failed, id)
end

-- tally: counts an outcome in the totals, and also in the minute if there is a label: '<category>|<route>'.
local function tally(word, now, label)
  redis.call('HINCRBY', '@stats', word, '1')
  if label then add_to_minute(now, {['o|' .. word .. '|' .. label] = 1}) end
end

-- end_cancelled: ends a cancelled job that no worker holds, wherever it waits. Returns 'cancelled'; or 'ended' if a
-- device has received it already: then it is delivered, and the other devices do not get it.
local function end_cancelled(now, id)
  local key, user, category = job_key(id), nil, nil
  local job = redis.call('HMGET', key, 'origin', 'meta', 'push_collapse', 'push_arriving', 'push_answered')
  local origin, ok, meta = job[1], pcall(cjson.decode, job[2] or '')
  if ok and type(meta) == 'table' and type(meta.user) == 'string' then
    user, category = meta.user, type(meta.category) == 'string' and meta.category or 'default'
    leave_backlog(now, user, category, id, job[3])
    if job[4] then redis.call('ZREM', arriving_key(user), id) end
  end
  local label = user and category .. '|'
  if not was_taken(job[5]) then
    end_unsent(now, id, origin, 'cancelled')
    tally('cancelled', now, label)
    return 'cancelled'
  end
  for _, place in ipairs({'@later', '@rq:scheduled:' .. origin, '@rq:canceled:' .. origin}) do
    redis.call('ZREM', place, id)
  end
  ends.tell(now, id, 'delivered')
  redis.call('DEL', key)
  if ends.delivered > 0 then redis.call('ZADD', '@delivered', text(now), id) end
  tally('delivered', now, label)
  return 'ended'
end
