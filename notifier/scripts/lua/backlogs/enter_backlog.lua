--! on_demand forget is_another enter_backlog leave_lane
--! needs arriving_key backlog_key backlogs_key ends goes_by_clock HIGH history is_background is_text job_key LANES
--! needs lanes_of leave_backlog look_by LOWERED number orders read_backlogs seconds steering tally text UNSENT
--! needs waiting_key waits
local RANK = {urgent = 1, default = 2, bulk = 3} -- the same for all workers, whatever lanes they serve

local held -- read once in a call
local function routes_are_held()
  if held == nil then held = redis.call('EXISTS', '@routes') == 1 end
  return held
end

-- leave_lane: deletes the wake-up and the waits of a user who has no backlog in this lane any more.
local function leave_lane(user, lane)
  redis.call('ZREM', '@wakeups:' .. lane, user)
  for _, name in ipairs(redis.call('SMEMBERS', '@routes')) do
    redis.call('ZREM', waiting_key(name), 'u' .. lane .. ' ' .. user)
  end
end

-- open_backlog: notes the backlog of `category`, in the more urgent of its lane and `lane`. Returns the backlog's lane;
-- whether it is new there: the user must be looked at now then, because the user's wake-up does not know this backlog;
-- whether it was empty; #lowered; and the reason for which it waits, see waits.lua.
local function open_backlog(user, category, lane)
  local backlogs = backlogs_key(user)
  local standing, lowered, why = unpack(redis.call('HMGET', backlogs, category, '#lowered', '#w:' .. category), 1, 3)
  if standing and (RANK[standing] or 99) <= (RANK[lane] or 99) then return standing, false, false, lowered, why end
  redis.call('HSET', backlogs, category, lane)
  if standing and not lanes_of(read_backlogs(user))[standing] then leave_lane(user, standing) end
  return lane, true, not standing, lowered, why
end

-- The fields that are deleted when a job begins anew. push_targets belongs to its data, and push_sent says what its
-- user may have received: both are deleted only if another call enqueued the job.
local OF_A_START = {'push_order', 'push_permit', 'push_outcome', 'push_attempts', 'push_count', 'push_gather',
  'push_crashes', 'push_begun', 'push_answered', 'push_by', 'push_reason', 'push_zone', 'push_since', 'push_collapse',
  'push_deadline', 'push_again', 'push_seen', 'push_read', 'push_refusals', 'push_orphan', 'push_history',
  'push_counted', 'push_wait', 'push_returned'}

local function forget(key)
  redis.call('HDEL', key, unpack(OF_A_START))
  redis.call('HDEL', key, 'push_targets', 'push_tagged', 'push_sent')
end

-- is_another: whether a job was enqueued again under its id by another call. seen: of the earlier call, see
-- *enter_backlog*.
local function is_another(created, seen)
  return seen and created and seen:sub(1, #created + 1) ~= created .. ' '
end

-- begin_anew: for a job that had ended and was requeued, or whose id another call enqueued again. In the second case
-- the data of the first job are gone, so the first ends as superseded wherever it waited.
local function begin_anew(now, id, key, origin, job, another)
  local user, category = (another and job.order and job.seen or ''):match(' @backlog:{(.*)}:([^}]*)$')
  if user then
    leave_backlog(now, user, category, id, job.collapse)
    redis.call('ZREM', '@later', id)
    for _, lane in ipairs(LANES) do redis.call('ZREM', '@rq:scheduled:' .. lane, id) end
    tally('superseded')
    ends.tell(now, id, 'superseded')
  end
  if another then forget(key) else redis.call('HDEL', key, unpack(OF_A_START)) end
  redis.call('PERSIST', key)
  redis.call('ZREM', '@rq:failed:' .. origin, id)
  redis.call('ZREM', '@rq:canceled:' .. origin, id)
  redis.call('ZREM', '@delivered', id)
end

-- lives_for: turns RQ's `ttl` into an expiry like others, as RQ's would delete the job's hash with all its fields.
-- Returns µs, or false.
local function lives_for(key)
  local left = redis.call('PTTL', key)
  redis.call('PERSIST', key)
  return left >= 0 and left * 1000
end

-- first_time: writes the fields that are written once for a job. Returns its order and its deadline in µs. A producer
-- without our library cannot write the deadline, as it does not know Redis's time.
local function first_time(now, key, meta, deadline)
  local order = orders.next()
  if type(meta.expires_in) == 'number' and not deadline then
    deadline = now + math.floor(meta.expires_in * 1000000)
    redis.call('HSET', key, 'push_deadline', text(deadline))
  end
  if type(meta.zone) == 'string' and meta.zone ~= '' then redis.call('HSET', key, 'push_zone', meta.zone) end
  if goes_by_clock(meta.user) then redis.call('HSET', key, 'push_since', text(now)) end
  return meta.priority == 'high' and order - HIGH or order, deadline
end

-- is_unknown: whether a job's category counts as 'default'. A category in which the user still has a backlog was
-- configured before, and stays.
local function is_unknown(meta, known)
  return known[meta.category] == nil and meta.category ~= 'default'
    and redis.call('HEXISTS', backlogs_key(meta.user), meta.category) == 0
end

-- read_arrival: reads a job's hash; nil if the key is no hash: RQ has sets beside its jobs. plain: of a producer
-- without our library.
local function read_arrival(id)
  local key = job_key(id)
  local read = redis.pcall('HMGET', key, 'origin', 'meta', 'push_order', 'push_permit', 'status', 'push_deadline',
    'push_outcome', 'push_arriving', 'push_rq_job', 'ttl', 'created_at', 'push_seen', 'push_collapse', 'push_targets',
    'push_history')
  if read.err then return nil end
  local origin, meta, order, permit, status, deadline, outcome, arriving, rq_job, ttl, created, seen, collapse, targets,
    noted = unpack(read, 1, 15)
  return {id = id, key = key, origin = origin, meta = meta, order = number(order), permit = permit, status = status,
    deadline = number(deadline), outcome = outcome, arriving = arriving, rq_job = rq_job, ttl = ttl, created = created,
    seen = seen, collapse = collapse, plain = seen or not targets, noted = noted}
end

-- is_free: whether the job exists and no worker has it in flight.
local function is_free(job, from)
  if from and (not job.origin or job.origin ~= from and not job.order) then
    if not job.origin and redis.call('EXISTS', job.key) == 0 then return false end
    job.origin = from -- its lane is the queue that had it, whatever the producer wrote
    redis.call('HSET', job.key, 'origin', from)
  end
  if not job.origin then return false end
  if not job.permit then return true end
  if not redis.call('ZSCORE', '@leases', job.id) then
    redis.call('HDEL', job.key, 'push_permit') -- no worker has a lease
    return true
  end
  -- It was enqueued again while in flight: its worker puts it back after it has settled the first send.
  if from and job.status == 'queued' then redis.call('HSET', job.key, 'push_again', '1') end
  return false
end

-- begin: a job that had ended, or that another call enqueued again, begins anew; RQ's `ttl` becomes an expiry. Returns
-- whether it was another call.
local function begin(now, job, from)
  local another = from and job.status == 'queued' and is_another(job.created, job.seen)
  local lasts = from and job.ttl and lives_for(job.key)
  if job.outcome or another then
    begin_anew(now, job.id, job.key, job.origin, job, another)
    job.order, job.deadline, job.noted = nil, nil, nil
  elseif job.plain and not job.order then
    redis.call('ZREM', '@delivered', job.id) -- an earlier job with this id
  end
  if lasts and now + lasts < (job.deadline or math.huge) then
    job.deadline = now + lasts
    redis.call('HSET', job.key, 'push_deadline', text(job.deadline))
  end
  return another
end

-- arrive: gives a new job its order. Returns when it is expected to go, if *join* says so, and whether it may be placed
-- before a head that waits for something else, such as a digest or a device.
local function arrive(now, job, meta, join, another)
  local expected, needs_recheck
  job.order, job.deadline = first_time(now, job.key, meta, job.deadline)
  if history.keep and not job.noted then
    job.noted = text(now)
    redis.call('HSET', job.key, 'push_history', job.noted)
  end
  if job.arriving then
    redis.call('ZREM', arriving_key(meta.user), job.id)
    redis.call('HDEL', job.key, 'push_arriving')
  end
  -- An expired job takes no other's place, nor does a requeued job that a worker has had.
  local is_candidate = (another or not job.outcome) and not (job.deadline and job.deadline <= now)
  if join and is_candidate then
    job.order, expected, needs_recheck = join(job.id, meta.user, meta.category, meta.collapse_id, job.order)
  end
  if needs_recheck == nil then needs_recheck = tonumber(job.order) < 0 end
  return expected, needs_recheck
end

-- expect_behind: the earliest time at which a job that joins a backlog is expected: that of its head. With lowered jobs
-- in the backlog, a background push goes behind the alerts, and another job may go before the head, whose device may
-- have no room: returns whether it may.
local function expect_behind(now, job, meta, lane, some_lowered)
  local wake_up = redis.call('ZSCORE', '@wakeups:' .. lane, meta.user) or now
  local lowers = some_lowered and tonumber(job.order) < LOWERED / 2
    and is_background(redis.call('HGET', job.key, 'push_targets'))
  if lowers then job.order = text(job.order + LOWERED) end
  return seconds(math.max(now, wake_up)), some_lowered and not lowers
end

-- note_place: wake-ups see to heads only, so the expiry of a job behind a head is noted for *sweep*. Returns whether
-- the user must be looked at because of a head that the wake-up does not know.
local function note_place(now, job, backlog, user, lane, is_new, needs_recheck)
  local is_head = redis.call('ZRANK', backlog, job.id) == 0
  local behind = is_head and redis.call('ZRANGE', backlog, '1', '1')[1] or not is_head and job.id
  local due = job.deadline
  if is_head and behind then due = number(redis.call('HGET', job_key(behind), 'push_deadline')) end
  if behind and due then redis.call('ZADD', '@expiring', text(due), behind) end
  if is_head and needs_recheck then return true end
  if is_head and not is_new then look_by(user, lane, math.max(now, job.deadline)) end -- at its expiry
  return is_new
end

-- stand: puts the job into its backlog. Returns the backlog's lane, and whether it is new, see *enter_backlog*.
local function stand(now, job, meta, expected, needs_recheck)
  local user, backlog = meta.user, backlog_key(meta.user, meta.category)
  local lane, is_new, was_empty, some_lowered, why = open_backlog(user, meta.category, job.origin)
  -- A job that *lower* put behind the alerts comes back to that place; #lowered may have gone meanwhile.
  if tonumber(job.order) >= LOWERED / 2 then
    some_lowered = redis.call('HSET', backlogs_key(user), '#lowered', '1')
  end
  if is_new then expected = seconds(now)
  elseif not expected then
    local passes
    expected, passes = expect_behind(now, job, meta, lane, some_lowered)
    needs_recheck = needs_recheck or passes
  end
  if redis.call('ZADD', backlog, job.order, job.id) == 1 then waits.add(why or waits.undecided, 1) end
  -- The user may wait for a route of the former head, or by the local time of its zone.
  needs_recheck = not is_new and (needs_recheck or routes_are_held() or goes_by_clock(user))
  if not was_empty and (is_new or needs_recheck or job.deadline) then
    is_new = note_place(now, job, backlog, user, lane, is_new, needs_recheck)
  end
  local more = job.plain and job.created and {'push_seen', job.created .. ' ' .. backlog} or {}
  if job.noted and (history.was_held(job.noted) or not was_empty) then
    more[#more + 1], more[#more + 2] = 'push_history', history.add(job.noted, now, 'b')
  end
  redis.call('HSET', job.key, 'push_order', job.order, 'status', 'scheduled', unpack(more))
  redis.call('ZADD', '@rq:scheduled:' .. job.origin, expected, job.id)
  return lane, is_new
end

-- enter_backlog: puts a job at its place in its user's backlog, from a queue, `later` or a dead worker. Idempotent.
-- Returns 'entered', the user, the backlog's lane, and whether the backlog, or a head that the wake-up does not know,
-- is new: the caller then looks at the user or sets the wake-up. Or it returns 'rq_job' for a job whose meta names no
-- user and category, or that was handed to RQ before; 'cancelled' for one that RQ cancelled, which the caller ends; nil
-- if nothing is to be done (deleted, ended, or in flight).
-- join: called with a new candidate; it may give it another job's place.
-- known: the configured categories, or nil; a job of another category is 'rq_job' until its meta says 'default'.
-- from: the lane of the queue from which it came.
-- push_seen of a plain job is when it was created, and its backlog: so a second use of its id is recognised.
local function enter_backlog(now, id, join, known, from)
  local job = read_arrival(id)
  if not job or not is_free(job, from) then return nil end
  if job.status == 'canceled' then return not UNSENT[job.outcome] and 'cancelled' or nil end
  local meta = not job.rq_job and is_text(id) and steering(job.meta)
  if not meta or known and not job.order and is_unknown(meta, known) then return 'rq_job' end
  local another = begin(now, job, from)
  local expected, needs_recheck = nil, job.order
  if not job.order then expected, needs_recheck = arrive(now, job, meta, join, another) end
  job.order = text(job.order)
  local lane, is_new = stand(now, job, meta, expected, needs_recheck)
  return 'entered', meta.user, lane, is_new
end
