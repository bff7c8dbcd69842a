-- end_cancelled: ends a job that is cancelled and that no worker holds, wherever it stands. Returns 'cancelled'; or
-- 'ended' where one of its devices took it before: then it is delivered, and the others get it no more.
-- job: {origin, meta, push_collapse, push_arriving, push_answered} of its hash. keep_delivered: µs.
local CANCEL_READS = {'origin', 'meta', 'push_collapse', 'push_arriving', 'push_answered'}

local function end_cancelled(now, id, job, keep, keep_delivered)
  local key, user = job_key(id), nil
  local origin, ok, meta = job[1], pcall(cjson.decode, job[2] or '')
  if ok and type(meta) == 'table' and type(meta.user) == 'string' then
    user = meta.user
    leave_backlog(now, user, type(meta.category) == 'string' and meta.category or 'default', id, job[3])
    if job[4] then redis.call('ZREM', arriving_key(user), id) end
  end
  if not (job[5] and job[5]:find('"delivered"', 1, true)) then
    end_unsent(now, id, origin, 'cancelled', keep)
    tally(user, 'cancelled')
    return 'cancelled'
  end
  for _, place in ipairs({'@later', '@rq:scheduled:' .. origin, '@rq:canceled:' .. origin}) do
    redis.call('ZREM', place, id)
  end
  ends.tell(now, id, 'delivered')
  redis.call('DEL', key)
  if keep_delivered > 0 then redis.call('ZADD', '@delivered', text(now), id) end
  tally(user, 'delivered')
  return 'ended'
end
