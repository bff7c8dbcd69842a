-- sweep: ends the jobs that RQ's own cancel has marked, which RQ notes only in the job's hash and its registry; and the
-- jobs that have expired behind the head of their backlog, as wake-ups see to heads only. Makes users due who wait for
-- a held route with a head that RQ has deleted. Forgets old deliveries, and past moments of @same_time. Ends leases in
-- time that were written before Redis's clock was set back.
-- ARGV 1 clock  2 keep, see ends.lua  3 the reason of an expiry, as RQ stores it  4 lease µs of the caller  5.. lanes
-- returns {how many jobs it ended or found gone, and leases it shortened; #since and #walked of idle_leaders.lua}
-- In @rq:canceled:<lane> the score of a job that the scripts ended is the time until which it is kept (s); the score of
-- a job that RQ cancelled is the time of the cancel. So entries in the past are RQ's. *settle* ends jobs in flight.
--! first_write
--! needs backlog_key end_cancelled end_failed ends free_dedupe job_key leave_backlog look_by note_due now_us number
--! needs read_backlogs steering tally text UNSENT waiting_key waits was_taken
local MOST, MOST_LEASES, MOST_FORGOTTEN, MOST_HOLDS, MOST_HELD = 100, 1000, 20000, 10, 25
local LONGEST_LEASE = 600000000 -- µs, the most that worker.lease may be
local now, why = now_us(ARGV[1]), ARGV[3]
local whole, ended = math.floor(now / 1000000), 0
ends.read(ARGV[2])

local function end_if_rq_cancelled(canceled, id)
  local key = job_key(id)
  local job = redis.pcall('HMGET', key, 'status', 'push_outcome', 'push_permit', 'push_rq_job', 'meta', 'origin')
  if job.err or job[1] ~= 'canceled' then
    redis.call('ZREM', canceled, id) -- it was deleted, or enqueued again
    ended = ended + 1
  elseif UNSENT[job[2]] then
    redis.call('ZADD', canceled, whole + math.max(1, redis.call('TTL', key)), id)
  elseif job[4] or not job[6] or not (job[5] or ''):find('"user"', 1, true) then
    redis.call('ZADD', canceled, whole + ends.failed, id) -- no notification: left to RQ
  elseif not job[3] then
    end_cancelled(now, id)
    ended = ended + 1
  end
end

-- expire: ends a job that has expired, unless a worker has taken it meanwhile.
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
    end_cancelled(now, id) -- a device has received it: it ends as delivered
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

-- look_at_deleted: RQ's delete tells nobody, and these users have no wake-up. Looks at some of them, drawn by lot. Not
-- at those who wait for a busy route: a worker soon lets them go.
local function look_at_deleted(hold)
  if hold:find('|busy|', 1, true) then return end
  for _, member in ipairs(redis.call('ZRANDMEMBER', waiting_key(hold), MOST_HELD)) do
    local lane, user = member:match('^u(%S+) (.+)$')
    local backlogs = lane and read_backlogs(user) or {}
    for i = 1, #backlogs, 2 do
      local head = backlogs[i + 1] == lane and redis.call('ZRANGE', backlog_key(user, backlogs[i]), '0', '0')[1]
      if head and redis.call('EXISTS', job_key(head)) == 0 then look_by(user, lane, now) end
    end
  end
end
for _, hold in ipairs(redis.call('SRANDMEMBER', '@routes', MOST_HOLDS)) do look_at_deleted(hold) end

-- forget_until: removes the entries of a sorted set up to µs `at`, in pieces, so that no call takes long.
local function forget_until(key, at)
  local old = redis.call('ZCOUNT', key, '-inf', text(at))
  if old > 0 then redis.call('ZREMRANGEBYRANK', key, '0', math.min(old, MOST_FORGOTTEN) - 1) end
end
forget_until('@delivered', now - ends.delivered)
forget_until('@same_time', now)

local lease_ends, too_late = now + tonumber(ARGV[4]), text(now + LONGEST_LEASE)
local lasting = redis.call('ZRANGEBYSCORE', '@leases', '(' .. too_late, '+inf', 'LIMIT', 0, MOST_LEASES)
for _, id in ipairs(lasting) do redis.call('ZADD', '@leases', text(lease_ends), id) end
if lasting[1] then note_due(lease_ends) end
ended = ended + #lasting

for i = 5, #ARGV do
  local canceled = '@rq:canceled:' .. ARGV[i]
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', canceled, '-inf', whole, 'LIMIT', 0, MOST)) do
    end_if_rq_cancelled(canceled, id)
  end
  -- A cancelled job stays in its queue, and `rq empty` deletes what is there.
  for _, id in ipairs(redis.call('ZRANDMEMBER', canceled, MOST_HELD)) do
    if redis.call('EXISTS', job_key(id)) == 0 then redis.call('ZREM', canceled, id) end
  end
end
waits.write()
local since, walked = unpack(redis.call('HMGET', '@leaders', '#since', '#walked'), 1, 2)
return {ended, number(since) or 0, number(walked) or 0}
