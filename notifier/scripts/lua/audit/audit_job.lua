-- audit_job: judges jobs, each in one step: whether a job is in the places that its status asks for, and no others.
-- ARGV 1 clock  2 '1' to repair at once  3 lanes, JSON  4 lease µs  5.. for each job: its id, and '' if the caller
--      found the job in the keyspace, or 'unlisted' if the caller has since read the job's queue and not found it there
-- returns {{id of a job that must be in its queue, …}, number of notifications, {finding, …} (see audit.lua)}
-- Repairs: a job in flight stays in flight and leaves all other places. An ended job stays ended. A job in a backlog or
-- in `later` stays in one of the two. A job that is nowhere goes to its backlog. A lease stays as it is until it ends;
-- then *pull* deals with it.
--! needs backlog_key date_permit ensure_wake_up enter_backlog finding findings waits_for_route is_text job_key note_due
--! needs now_us seconds sent_key steered text waits
local now, repair, lease, rank = now_us(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[4]), {}
for i, lane in ipairs(cjson.decode(ARGV[3])) do rank[lane] = i end
local queued, notifications = {}, 0
local ENDED = {failed = true, canceled = true}
local FAR = 4102444800000000 -- as in routes.lua: the time in `later` of a notification's rest that waits for a route
local MAX_FROM_TAIL = 2000 -- a job that has come back to its queue meanwhile is near the tail
local FADING = 2000 -- ms: RQ may clear a job's registry entry so long before the job's hash ends

local function read(id)
  local job = redis.pcall('HMGET', job_key(id), 'origin', 'status', 'meta', 'push_permit', 'push_order', 'push_outcome',
    'push_rq_job', 'push_deadline', 'push_orphan')
  if job.err or not job[1] or not rank[job[1]] then return nil end -- a set of RQ's, or a job of another queue
  local j = {id = id, key = job_key(id), origin = job[1], status = job[2] or 'none', permit = job[4], order = job[5],
    outcome = job[6], ends = job[8], orphan = job[9]}
  j.user, j.category = steered(job[3], job[7])
  local ends = redis.call('ZSCORE', '@leases', id)
  j.lease = ends and tonumber(ends)
  j.held = j.permit and j.lease and j.lease > now
  if not j.user then return j end
  j.backlog = backlog_key(j.user, j.category)
  j.in_backlog = redis.call('ZSCORE', j.backlog, id)
  j.in_later = redis.call('ZSCORE', '@later', id)
  j.scheduled = redis.call('ZSCORE', '@rq:scheduled:' .. j.origin, id)
  j.failed = redis.call('ZSCORE', '@rq:failed:' .. j.origin, id)
  j.canceled = redis.call('ZSCORE', '@rq:canceled:' .. j.origin, id)
  j.wip = j.permit and redis.call('ZSCORE', '@rq:wip:' .. j.origin, id .. ':' .. j.permit)
  j.delivered = redis.call('ZSCORE', '@delivered', id)
  return j
end

local function places(j)
  local found = {}
  local function put(stands, place) if stands then found[#found + 1] = place end end
  put(j.in_backlog, j.backlog)
  put(j.in_later, '@later')
  put(j.lease, '@leases')
  put(j.failed, '@rq:failed:' .. j.origin)
  put(j.canceled, '@rq:canceled:' .. j.origin)
  put(j.delivered, '@delivered')
  return #found > 0 and 'in ' .. table.concat(found, ' and in ') or 'nowhere'
end

local function fades(j)
  local left = redis.call('PTTL', j.key)
  return left >= 0 and left < FADING
end

-- by_status: for each status, a function that returns the right state in words, or nil if the job's places are right.
local by_status = {}
function by_status.queued(j)
  if j.in_backlog or j.in_later then return 'it is scheduled' end
  -- If a worker can read a job's user only from its data, the job stays queued under the lease.
  -- A queued job with an outcome had ended and was enqueued again: *pull* starts the job afresh.
  if (j.failed or j.canceled) and not j.outcome or (not j.permit) ~= (not j.lease) then return 'in its queue alone' end
  if not j.lease then
    if j.unlisted and not redis.call('LPOS', '@rq:queue:' .. j.origin, j.id, 'RANK', -1, 'MAXLEN', MAX_FROM_TAIL) then
      return 'in its backlog'
    end
    queued[#queued + 1] = j.id
  end
end
function by_status.scheduled(j)
  if j.lease or j.permit or j.failed or j.canceled then return 'in its backlog alone' end
  if j.in_backlog and j.in_later then return 'in one of them' end
  -- A job of RQ's own enqueue_in is in RQ's registry alone: RQ queues the job when its time comes.
  if not j.in_backlog and not j.in_later and (j.order or not j.scheduled) then return 'in its backlog' end
  if not j.scheduled then return 'in @rq:scheduled:' .. j.origin .. ' too' end
  if j.in_backlog and (not j.order or tonumber(j.order) ~= tonumber(j.in_backlog)) then
    return 'at its own place in the backlog, ' .. (j.order or 'which it does not know')
  end
  if j.in_backlog and j.ends and redis.call('ZRANK', j.backlog, j.id) > 0
    and not redis.call('ZSCORE', '@expiring', j.id) then
    return 'in @expiring too'
  end
  if j.in_later and tonumber(j.in_later) >= FAR and not waits_for_route('j' .. j.id) then
    return 'in its backlog: no route is held that it waits for'
  end
end
function by_status.started(j)
  if j.in_backlog or j.in_later or j.failed or j.canceled or j.scheduled then return 'in flight alone' end
  if not j.permit then return 'in its backlog, as no permit is known' end
  if not j.lease then return 'under a lease' end
  if not j.wip then return 'in @rq:wip:' .. j.origin .. ' too' end
end
function by_status.failed(j)
  if j.in_backlog or j.in_later or j.scheduled or j.lease or j.permit or j.canceled then return 'it has ended' end
  if not j.failed and not fades(j) and is_text(j.id) then return 'in @rq:failed:' .. j.origin end
  if not j.outcome then return 'with an outcome' end
end
function by_status.canceled(j) -- RQ's own cancel leaves a job where it waits, and *pull* skips the job
  if j.failed then return 'in @rq:canceled:' .. j.origin .. ' alone' end
  if not j.canceled and not fades(j) then return 'in @rq:canceled:' .. j.origin end
end
function by_status.deferred(j) -- by RQ, until the jobs that it depends on are done
  if j.order or j.permit or j.in_backlog or j.in_later then return 'in its backlog' end
end

local function remove(j, ...)
  for _, key in ipairs({...}) do redis.call('ZREM', key, j.id) end
end

local function drop_permit(j)
  if not j.permit then return end
  date_permit(sent_key(j.user), j.permit, now)
  date_permit(sent_key(j.user, j.category), j.permit, now)
  redis.call('ZREM', '@rq:wip:' .. j.origin, j.id .. ':' .. j.permit)
  redis.call('HDEL', j.key, 'push_permit')
end

local function end_again(j)
  local kept, has_failed = redis.call('PTTL', j.key), j.status == 'failed'
  local failed, canceled = '@rq:failed:' .. j.origin, '@rq:canceled:' .. j.origin
  drop_permit(j)
  remove(j, j.backlog, '@later', '@leases', '@rq:scheduled:' .. j.origin, has_failed and canceled or failed)
  if has_failed and not j.outcome then redis.call('HSET', j.key, 'push_outcome', 'failed') end
  local endless = has_failed and '+inf' or seconds(now) -- the score by which *sweep* ends a cancelled job
  local ends = kept > 0 and seconds(now + kept * 1000) or endless
  redis.call('ZADD', has_failed and failed or canceled, 'NX', ends, j.id)
  return 'kept as ' .. j.status .. ', and nowhere else'
end

-- lapse: gives a job a lease in place of a lost one. If a worker still has the job, that worker settles it before the
-- new lease ends; else *pull* puts the job back, like a job of a dead worker.
local function lapse(j)
  redis.call('ZADD', '@leases', text(now + lease), j.id)
  note_due(now + lease)
  return 'given a lease: when that has ended it is put back'
end

-- fly_on: keeps a job in flight whose worker is sending it, or died while it was sending.
local function fly_on(j)
  remove(j, j.backlog, '@later', '@rq:scheduled:' .. j.origin, '@rq:failed:' .. j.origin, '@rq:canceled:' .. j.origin)
  if not j.held and j.permit then
    redis.call('ZADD', '@rq:wip:' .. j.origin, '+inf', j.id .. ':' .. j.permit)
    redis.call('HSET', j.key, 'status', 'started')
  end
  return j.lease and 'left until its lease ends: pull puts it back' or lapse(j)
end

local function wait_on(j)
  remove(j, '@leases', '@rq:failed:' .. j.origin, '@rq:canceled:' .. j.origin)
  drop_permit(j)
  local of_its_own = j.in_later and tonumber(j.in_later) < FAR
  -- A job in both places waits for a time of its own only if RQ's registry has that time too.
  if of_its_own and j.in_backlog then
    of_its_own = j.scheduled and math.abs(j.scheduled * 1000000 - j.in_later) < 1000
  end
  if of_its_own or j.in_later and waits_for_route('j' .. j.id) then
    remove(j, j.backlog)
    redis.call('HSET', j.key, 'status', 'scheduled')
    redis.call('ZADD', '@rq:scheduled:' .. j.origin, 'NX', seconds(j.in_later), j.id)
    return 'kept in @later'
  end
  remove(j, '@later')
  if j.in_backlog and not j.order then redis.call('HSET', j.key, 'push_order', j.in_backlog) end
  local _, _, lane, is_new = enter_backlog(now, j.id)
  if not lane then return 'left: its meta is not as it must be' end
  if is_new then redis.call('ZADD', '@wakeups:' .. lane, 'LT', text(now), j.user) end
  ensure_wake_up(j.user, lane, now)
  note_due(now, lane)
  return j.in_backlog and 'kept in its backlog' or 'put back in its backlog'
end

local function forget(j)
  drop_permit(j)
  remove(j, j.backlog, '@later', '@leases', '@rq:scheduled:' .. j.origin, '@rq:failed:' .. j.origin,
    '@rq:canceled:' .. j.origin)
  redis.call('DEL', j.key)
  return 'removed: it was delivered'
end

local function mend(j)
  if j.orphan and not j.lease then redis.call('HDEL', j.key, 'push_orphan') end
  if j.held then
    fly_on(j)
    return 'left in flight, under the lease that holds it'
  end
  if j.delivered then return forget(j) end
  if ENDED[j.status] then return end_again(j) end
  if not by_status[j.status] then return 'left: nobody can tell what became of it' end
  -- A lease without a permit counts only for a started job: its worker may still have the job.
  if j.lease and (j.permit or j.status == 'started') then return fly_on(j) end
  if j.permit and not j.in_backlog and not j.in_later then return fly_on(j) end
  return wait_on(j)
end

local function judge(id, unlisted)
  local j = read(id)
  if not j then return end
  local what = 'job ' .. id
  if not j.user then -- RQ owns this job, unless *pull* has leased it
    if j.permit and not j.lease then
      finding(what, 'was taken under a permit and stands in no lease', 'under a lease', repair and lapse(j))
    end
    return
  end
  notifications = notifications + 1
  j.unlisted = unlisted
  local right = 'the status of a notification'
  if by_status[j.status] then right = by_status[j.status](j) end
  if j.orphan and not j.lease then right = right or 'no orphan' end
  if j.delivered then right = 'delivered, and nowhere else' end
  if not right then return end
  local stands = places(j)
  if j.wip and not j.lease then stands = stands .. ', under a permit' end
  finding(what .. ' of ' .. j.user, 'is ' .. j.status .. ' and stands ' .. stands, right, repair and mend(j))
end

for i = 5, #ARGV, 2 do judge(ARGV[i], ARGV[i + 1] == 'unlisted') end
waits.write()
return {queued, notifications, findings}
