-- sweep: ends what RQ's own cancel has left: RQ says so in the job's hash and in its registry, and to nobody else; and
-- what has expired behind the head of its backlog, where no wake-up leads to. Forgets what was
-- delivered long ago, and moments that are over.
-- ARGV 1 clock  2 keep, see ends.lua  3 why it expired, as RQ stores it  4.. lanes
-- returns {how many it ended, #since and #walked of idle_leaders.lua}
-- In @rq:canceled:<lane> the jobs that we ended stand at the s until which they are kept, to come; RQ puts those that
-- it cancels at the s at which it does. So what stands in the past is RQ's. What is in flight is left to *settle*.
--! first_write
--! needs backlog_key end_cancelled end_failed ends free_dedupe job_key leave_backlog now_us number
--! needs steering tally text UNSENT waits was_taken
local MOST, MOST_FORGOTTEN = 100, 20000
local now, why = now_us(ARGV[1]), ARGV[3]
local whole, ended = math.floor(now / 1000000), 0
ends.read(ARGV[2])

-- end_if_rq_cancelled: id: of RQ's registry `canceled`.
local function end_if_rq_cancelled(canceled, id)
  local key = job_key(id)
  local job = redis.pcall('HMGET', key, 'status', 'push_outcome', 'push_permit', 'push_rq_job', 'meta', 'origin')
  if job.err or job[1] ~= 'canceled' then
    redis.call('ZREM', canceled, id) -- it has gone, or was enqueued again
  elseif UNSENT[job[2]] then
    redis.call('ZADD', canceled, whole + math.max(1, redis.call('TTL', key)), id)
  elseif job[4] or not job[6] or not (job[5] or ''):find('"user"', 1, true) then
    redis.call('ZADD', canceled, whole + ends.failed, id) -- no notification: left to RQ
  elseif not job[3] then
    end_cancelled(now, id)
    ended = ended + 1
  end
end

-- expire: a job that a worker took meanwhile is not touched.
local function expire(id)
  redis.call('ZREM', '@expiring', id)
  local job = redis.pcall('HMGET', job_key(id), 'origin', 'meta', 'push_permit', 'push_outcome', 'push_deadline',
    'status', 'push_collapse', 'push_answered')
  local deadline, meta = not job.err and number(job[5]), nil
  local is_over = deadline and deadline <= now and not job[3] and not job[4] and job[6] ~= 'canceled'
  if is_over then meta = steering(job[2]) end
  if not meta then return end
  if was_taken(job[8]) then
    if not redis.call('ZSCORE', backlog_key(meta.user, meta.category), id) then return end
    end_cancelled(now, id) -- one of its devices took it
  elseif leave_backlog(now, meta.user, meta.category, id, job[7]) then
    redis.call('ZREM', '@rq:scheduled:' .. job[1], id)
    free_dedupe(id, job_key(id))
    end_failed(now, id, job[1], 'expired', why, ends.failed, '')
    tally('expired', now, meta.category .. '|')
    ends.tell(now, id, 'expired', why)
  else
    return
  end
  ended = ended + 1
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', '@expiring', '-inf', text(now), 'LIMIT', 0, MOST)) do
  expire(id)
end

-- forget_until: what stands in a set up to a moment, as much as one call may take out.
local function forget_until(key, at)
  local old = redis.call('ZCOUNT', key, '-inf', text(at))
  if old > 0 then redis.call('ZREMRANGEBYRANK', key, '0', math.min(old, MOST_FORGOTTEN) - 1) end
end
forget_until('@delivered', now - ends.delivered)
forget_until('@same_time', now)

for i = 4, #ARGV do
  local canceled = '@rq:canceled:' .. ARGV[i]
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', canceled, '-inf', whole, 'LIMIT', 0, MOST)) do
    end_if_rq_cancelled(canceled, id)
  end
end
waits.write()
local since, walked = unpack(redis.call('HMGET', '@leaders', '#since', '#walked'), 1, 2)
return {ended, number(since) or 0, number(walked) or 0}
