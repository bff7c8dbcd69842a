--! exports direct
--! needs backlog_key backlogs_key claim_key claim_of decide gather go goes_by_clock HIGH history is_ascii job_key
--! needs new_backlog new_user number opens_at orders read_claims remember seconds set_wake_up steering text
--! needs users_rules waits why_of
-- The direct way: a job that comes from its queue and need not wait is leased at once, with the same result in Redis as
-- after a visit. Only the plain case goes this way: a new job, of a producer with this library, for a user who muted
-- nothing and has no waiting jobs. If the rules do not let the job go, it enters its backlog. *visit* does all else.
local NEW_JOB = {'origin', 'status', 'meta', 'data', 'push_targets', 'push_deadline', 'push_history', 'push_order',
  'push_outcome', 'push_permit', 'push_arriving', 'push_rq_job', 'ttl'}

-- room: how many jobs may go this way now. waits: {user: whether a job of the user waits, or may wait}.
local direct = {room = 0, waits = {}, jobs = {}, none_wait = false}
local look -- of *pull*
function direct.begin(of_call) look = of_call end

-- new_job: {id, user, category, high, data, targets, zone, collapse, deadline, noted, origin}, or nil if the job is no
-- plain case.
local function new_job(id, lane, now)
  local job = redis.pcall('HMGET', job_key(id), unpack(NEW_JOB))
  if job.err then return nil end
  local origin, status, said, data, targets, ends, noted, order, outcome, permit, arriving, rq_job, ttl = unpack(job)
  if origin ~= lane or status ~= 'queued' or not (data and targets) then return nil end
  if order or outcome or permit or arriving or rq_job or ttl then return nil end
  local deadline = ends and number(ends)
  if ends and not (deadline and deadline > now) or not is_ascii(id) then return nil end
  local meta = steering(said)
  if not meta or meta.expires_in and not deadline then return nil end
  local found = {id = id, user = meta.user, category = meta.category, high = meta.priority == 'high', data = data,
    targets = targets, deadline = deadline, noted = noted, origin = origin}
  if meta.zone and meta.zone ~= '' and type(meta.zone) == 'string' then found.zone = meta.zone end
  if meta.collapse_id and type(meta.collapse_id) == 'string' then found.collapse = meta.collapse_id end
  return found
end

-- read: reads what *take* needs of the jobs from the queue of `lane`, in few commands. none_wait: whether none of their
-- users had a waiting job.
function direct.read(ids, lane)
  local jobs, backlogs, claims, last, come = {}, {}, {}, nil, {}
  for _, id in ipairs(direct.room > 0 and ids or {}) do
    local job = new_job(id, lane, look.now)
    jobs[id] = job
    if job then -- if one of a user's new jobs may overtake or replace another, all go through their backlog
      local before, rare = come[job.user], job.high or job.collapse ~= nil
      if before or rare and before ~= nil then direct.waits[job.user] = true end
      come[job.user] = before or rare
    end
    if job and not (last and last.user == job.user and last.category == job.category) then
      last, backlogs[#backlogs + 1] = job, backlogs_key(job.user)
      claims[#claims + 1] = claim_key(job.user, job.category)
    end
  end
  direct.jobs, direct.none_wait = jobs, #claims > 0 and redis.call('EXISTS', unpack(backlogs)) == 0
  read_claims(claims)
end

-- is_plain: whether the user's rules are known, and *opens_at* alone decides by them when a job of the user may go.
local function is_plain(user)
  if not users_rules.index_of(user) then return false end
  local chosen = users_rules.chosen[user]
  return not (chosen and (chosen.m or chosen.clock))
end

-- nothing_waits: whether no job of the user waits, and the user is plain.
local function nothing_waits(user)
  local waits = direct.waits[user]
  if waits == nil then
    if look.rules.forgets then remember(user) end
    waits = not direct.none_wait and redis.call('EXISTS', backlogs_key(user)) == 1 or not is_plain(user)
    direct.waits[user] = waits
  end
  return not waits
end

-- is_simple: whether *opens_at* alone decides when a job of the category may go.
local function is_simple(category)
  local of = look.rules.categories[category]
  return of and not (of.digest or of.overall)
end

-- clock_fields: the fields of a job's hash that rules by the clock need, as *first_time* writes them.
local function clock_fields(job)
  local by_clock = goes_by_clock(job.user)
  if not (job.zone or by_clock) then return end
  local fields = job.zone and {'push_zone', job.zone} or {}
  if by_clock then fields[#fields + 1], fields[#fields + 2] = 'push_since', text(look.now) end
  return unpack(fields)
end

-- wait: puts a job into its backlog, as the only waiting job of its user. opens: µs at which the rules let it go.
local function wait(lane, job, user, backlog, opens)
  local now, name, category, id = look.now, user.name, backlog.category, backlog.head
  local key = job_key(id)
  local order, why = orders.next(), why_of(backlog, opens, now)
  local place = text(job.high and order - HIGH or order)
  direct.waits[name] = true
  redis.call('HSET', backlogs_key(name), category, lane, '#w:' .. category, why)
  redis.call('ZADD', backlog_key(name, category), place, id)
  waits.add(why, 1)
  if job.noted then
    local noted = history.add(job.noted, now, backlog.by)
    redis.call('HSET', key, 'status', 'scheduled', 'push_order', place, 'push_history', noted, clock_fields(job))
  else redis.call('HSET', key, 'status', 'scheduled', 'push_order', place, clock_fields(job)) end
  gather('ZADD', '@rq:scheduled:' .. lane, seconds(opens), id)
  set_wake_up(name, lane, math.min(opens, job.deadline or opens), now)
end

-- Of the job before, as a user's jobs often come together. `head` and `arrives` are of one job, and set anew; `by` is
-- written before it is read.
local user, backlog
-- take: leases a job that has just come from the queue of `lane`, or lets it wait. Returns false if *place* and a visit
-- must handle the job.
function direct.take(id, lane)
  local job = direct.room > 0 and direct.jobs[id]
  direct.jobs[id] = nil -- if the queue has the job twice, it is not new the second time
  if not (job and nothing_waits(job.user) and is_simple(job.category)) then return false end
  if not (user and user.name == job.user) then
    local index = users_rules.index_of(job.user)
    user, backlog = new_user(job.user, look.rules.users[index + 1], index), nil
  end
  if not (backlog and backlog.category == job.category and backlog.lane == lane) then
    backlog = new_backlog(look.rules, user, job.category, lane)
  end
  if look.rules.clock then backlog.arrives = {job.zone, look.now} end
  backlog.head = id
  local opens = opens_at(look.rules, user, backlog, look.now)
  if not opens then return false end
  if opens > look.now then
    if backlog.drops or job.collapse then return false end
    wait(lane, job, user, backlog, opens)
    return true
  end
  backlog.claim = backlog.claim or claim_of(job.user, job.category, look.claimant, look.now)
  if backlog.claim.elsewhere then return false end
  local verdict, said = decide(look, user, backlog, job)
  if verdict ~= 'go' then return false end
  direct.room = direct.room - 1
  local permit = text(orders.next())
  local order = job.high and text(permit - HIGH) or permit
  go(look, user, backlog, job, permit, said, 'push_order', order, clock_fields(job))
  return true
end
