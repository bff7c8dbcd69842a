--! exports direct
--! needs backlogs_key claim_key claim_of count_sends counts_devices devices_open gather goes_by_clock HIGH history
--! needs is_backlog job_key lacking lease_job leased_job new_backlog new_user number opens_at orders
--! needs plan_of preferences read_claims read_job remember seconds set_wake_up set_wake_ups spend_devices spend_room
--! needs steering targets_of text text_of_counted waits why_of
-- The direct way: what comes from its queue and need not wait, or has waited and may go now, is leased at once, in the
-- same step. It leaves Redis as a visit would have. Only the plain case goes this way: a new job of a producer of ours,
-- of a user who muted nothing and of whom nothing waits, which stands in a backlog only if the rules do not let it go;
-- or the head of a user's only backlog that no worker has had. All else is left to *visit*.
local NEW_JOB = {'origin', 'status', 'meta', 'data', 'push_targets', 'push_deadline', 'push_accepted', 'push_order',
  'push_outcome', 'push_permit', 'push_arriving', 'push_rq_job', 'ttl'}

local MAX_HEADS = 25 -- of one user at one look

-- is_open: whether anything may go this way now. room: how many new ones may.
local direct = {is_open = false, room = 0, waits = {}, jobs = {}, none_wait = false}
local look -- of *pull*

-- begin: some_rare: whether a route may be held.
function direct.begin(of_call, some_rare)
  look = of_call
  direct.is_open = not (some_rare and redis.call('EXISTS', '@routes') == 1)
end

-- new_job: {user, category, high, data, targets, zone, collapse, deadline, accepted, origin}, or nil where
-- there is more to look at.
local function new_job(id, lane, now)
  local job = redis.pcall('HMGET', job_key(id), unpack(NEW_JOB))
  if job.err then return nil end
  local origin, status, said, data, targets, ends, accepted, order, outcome, permit, arriving, rq_job, ttl = unpack(job)
  if origin ~= lane or status ~= 'queued' or not (data and targets) then return nil end
  if order or outcome or permit or arriving or rq_job or ttl then return nil end
  local deadline = ends and number(ends)
  if ends and not (deadline and deadline > now) or id:find('[\128-\255]') then return nil end
  local meta = steering(said)
  if not meta or meta.expires_in and not deadline then return nil end
  local found = {user = meta.user, category = meta.category, high = meta.priority == 'high', data = data,
    targets = targets, deadline = deadline, accepted = accepted, origin = origin}
  if meta.zone and meta.zone ~= '' and type(meta.zone) == 'string' then found.zone = meta.zone end
  if meta.collapse_id and type(meta.collapse_id) == 'string' then found.collapse = meta.collapse_id end
  return found
end

-- read: what is asked of each job that comes from the queue of `lane`, at once for all of these. none_wait: whether
-- nothing waited of any of their users.
function direct.read(ids, lane)
  local jobs, users, backlogs, claims, last, candidates = {}, {}, {}, {}, nil, {}
  for _, id in ipairs(direct.room > 0 and ids or {}) do
    local job = new_job(id, lane, look.now)
    jobs[id] = job
    if job and job.collapse then -- of several that have come, the last takes the place of the others: in their backlog
      local same = job.user .. '\n' .. job.category .. '\n' .. job.collapse
      if candidates[same] then jobs[candidates[same]], jobs[id] = nil, nil end
      candidates[same] = id
    end
    if job and not (last and last.user == job.user and last.category == job.category) then
      last, users[#users + 1], backlogs[#backlogs + 1] = job, job.user, backlogs_key(job.user)
      claims[#claims + 1] = claim_key(job.user, job.category)
    end
  end
  direct.jobs, direct.none_wait = jobs, #claims > 0 and redis.call('EXISTS', unpack(backlogs)) == 0
  read_claims(claims)
  preferences.read(users)
end

-- is_plain: whether *opens_at* tells all of when something of this user may go, by rules that are known.
function direct.is_plain(user)
  if not preferences.index_of(user) then return false end
  local chosen = preferences.of[user]
  return not (chosen and (chosen.m or chosen.clock))
end

-- nothing_waits: for this user, who is plain.
function direct.nothing_waits(user)
  local waits = direct.waits[user]
  if waits == nil then
    if look.rules.forgets then remember(user) end
    waits = not direct.none_wait and redis.call('EXISTS', backlogs_key(user)) == 1 or not direct.is_plain(user)
    direct.waits[user] = waits
  end
  return not waits
end

-- plan_for: by which routes a job goes, where no other worker has heads of its backlog in flight, and the providers let
-- it go now: their projects, the devices, and what the caller may send by a route; or nil. backlog.open: the devices
-- that are counted, or nil.
function direct.plan_for(job, user, backlog)
  local rules = look.rules
  backlog.claim = claim_of(user.name, backlog.category, look.claimant, look.now)
  if backlog.claim.elsewhere or backlog.claim.left then return nil end
  local app = rules.apps and rules.apps[backlog.category]
  local plan = plan_of(job.targets, app)
  local counts = plan.limited or rules.devices and counts_devices(rules, user.index, plan)
  backlog.open = counts and targets_of(job.targets, nil, app) or nil
  if counts and devices_open(look, user, backlog, backlog.open) > look.now then return nil end
  return not lacking(rules, look.rooms, plan.needs, look.now) and plan
end

-- is_simple: whether *opens_at* tells all of when the next of a category may go.
function direct.is_simple(category)
  local rules = look.rules
  return rules.categories[category] and not (rules.digests and rules.digests[category]
    or rules.overall and rules.overall[category])
end

-- clock_fields: of a job's hash that rules by the clock go by, as *first_time* has them.
local function clock_fields(job)
  local by_clock = goes_by_clock(job.user)
  if not (job.zone or by_clock) then return end
  local fields = job.zone and {'push_zone', job.zone} or {}
  if by_clock then fields[#fields + 1], fields[#fields + 2] = 'push_since', text(look.now) end
  return unpack(fields)
end

-- opens: the µs at which the rules let a job go that is at the head of its backlog; or nil where a zone is unknown.
function direct.opens(user, backlog, id)
  backlog.head, backlog.own, backlog.by = id, nil, nil
  return opens_at(look.rules, user, backlog, look.now)
end

-- wait: the job is the first that waits of its user; the rules let it go at µs `opens`.
function direct.wait(lane, job, user, backlog, opens)
  local now, name, category, id = look.now, user.name, backlog.category, backlog.head
  local key = job_key(id)
  local order, why = orders.next(), why_of(backlog, opens, now)
  local place = text(job.high and order - HIGH or order)
  direct.waits[name] = true
  redis.call('HSET', backlogs_key(name), category, lane, '#w:' .. category, why)
  redis.call('ZADD', backlog.key, place, id)
  waits.add(why, 1)
  if job.accepted then
    local held = history.add(job.accepted, nil, now, backlog.by)
    redis.call('HSET', key, 'status', 'scheduled', 'push_order', place, 'push_held', held, clock_fields(job))
  else redis.call('HSET', key, 'status', 'scheduled', 'push_order', place, clock_fields(job)) end
  gather('ZADD', '@rq:scheduled:' .. lane, seconds(opens), id)
  set_wake_up(name, lane, math.min(opens, job.deadline or opens), now)
end

-- send: the job goes, under this number. since: µs since when it was due, or nil. More fields of its hash may follow.
function direct.send(job, user, backlog, plan, number_of, since, ...)
  local id, permit, cost, open = backlog.head, text(number_of), backlog.cost, backlog.open
  look.trim = number_of % 8 == 0
  count_sends(look, user, backlog, permit)
  spend_room(look.rules, look.rooms, plan.needs, look.now)
  if open then spend_devices(look, user, backlog, open, permit) end
  if cost == 1 and not open then lease_job(look, id, permit, job.origin, ...)
  else lease_job(look, id, permit, job.origin, 'push_counted', text_of_counted(permit, cost, open), ...) end
  backlog.claim.taken = backlog.claim.taken + 1
  local leased = leased_job(id, permit, user.name, backlog.category, job.data, job.deadline, look.now)
  leased[LEASED.since_us] = since
  look.leased[#look.leased + 1] = leased
end

-- take: leases a job that has just come from the queue of `lane`, or lets it wait. Returns false where it is to go
-- through its backlog.
function direct.take(id, lane)
  local job = direct.room > 0 and direct.jobs[id]
  direct.jobs[id] = nil -- what stands in the queue twice is not new the second time
  if not (job and direct.nothing_waits(job.user) and direct.is_simple(job.category)) then return false end
  local index = preferences.index_of(job.user)
  local user = new_user(job.user, look.rules.users[index + 1], index)
  local backlog = new_backlog(look.rules, user, job.category, lane)
  if look.rules.clock then backlog.arrives = {job.zone, look.now} end
  local opens = direct.opens(user, backlog, id)
  if not opens then return false end
  if opens > look.now then
    if backlog.drops or job.collapse then return false end
    direct.wait(lane, job, user, backlog, opens)
    return true
  end
  local plan = direct.plan_for(job, user, backlog)
  if not plan then return false end
  local number_of = orders.next()
  direct.room = direct.room - 1
  local order = text(job.high and number_of - HIGH or number_of)
  direct.send(job, user, backlog, plan, number_of, nil, 'push_order', order, clock_fields(job))
  return true
end

-- only_backlog: of a user who waits in no other and for nothing out of the ordinary; or nil.
local function only_backlog(user, lane)
  local fields, category = redis.call('HGETALL', backlogs_key(user.name)), nil
  for i = 1, #fields, 2 do
    local name = fields[i]
    if is_backlog(name) then
      if category or fields[i + 1] ~= lane then return nil end
      category = name
    elseif name:sub(1, 3) ~= '#w:' then return nil end
  end
  if not (category and direct.is_simple(category)) then return nil end
  local backlog = new_backlog(look.rules, user, category, lane, waits.read(fields)[category] or '?')
  if not backlog.drops then return backlog end
end

-- send_head: sends the head of a backlog that the rules let go. Returns false where there is more to look at.
local function send_head(user, backlog, since)
  local job = read_job(backlog.head)
  if not job or job.status ~= 'scheduled' or job.data == '' or not job.targets or job.attempts + job.crashes > 0
    or job.answered or job.collapse or job.count or job.refusals or job.not_before
    or job.deadline and job.deadline <= look.now then return false end
  local plan = direct.plan_for(job, user, backlog)
  if not plan then return false end
  if job.held then
    local held = history.add(job.accepted, job.held, look.now, 'f')
    direct.send(job, user, backlog, plan, orders.next(), since, 'push_held', held)
  else direct.send(job, user, backlog, plan, orders.next(), since) end
  redis.call('ZREM', backlog.key, job.id) -- last, so that it stays where what was sent cannot be read
  waits.add(backlog.why, -1)
  gather('ZREM', '@rq:scheduled:' .. job.origin, job.id)
  if job.deadline then gather('ZREM', '@expiring', job.id) end
  return true
end

-- visit: leases what may go of a user whose wake-up in `lane` is due since µs `since`, and sets it anew. index: of the
-- user's policy in the rules. Returns false where there is more to look at.
function direct.visit(name, lane, since, index)
  if not (direct.is_open and direct.is_plain(name)) then return false end
  local user = new_user(name, look.rules.users[index + 1], index)
  local backlog = only_backlog(user, lane)
  if not backlog then return false end
  local full = math.min(look.full, #look.leased + MAX_HEADS)
  while true do
    local heads = redis.call('ZRANGE', backlog.key, '0', '1')
    if not heads[1] then return false end
    backlog.at = direct.opens(user, backlog, heads[1])
    if not backlog.at then return false end
    local is_full = #look.leased >= full
    if backlog.at > look.now or is_full then
      -- What has expired is due whatever the rules say, and ends by a visit.
      return set_wake_ups(name, {backlog}, look.now, nil)[lane] > look.now or is_full
    end
    if not send_head(user, backlog, since) then return false end
    if not heads[2] then break end
  end
  gather('ZREM', '@wakeups:' .. lane, name)
  look.emptied[#look.emptied + 1] = backlogs_key(name)
  return true
end
