--! exports direct EXCEPTIONS
-- The direct way: what comes from its queue and need not wait is leased at once, in the same step, and never stands in
-- a backlog. It leaves Redis as *admit* would have. Only the plain case goes this way: a new job of a producer of ours,
-- for a user of whom nothing waits, under rules that let it go. Where they do not, it is the first in its backlog, and
-- its user's wake-up is set at once. All else is looked at by *admit*.
--   @exceptions:<name>  set of the users that have other rules than everyone; their jobs go through their backlogs
local EXCEPTIONS = '@exceptions:'
local NEW_JOB = {'origin', 'status', 'meta', 'data', 'push_targets', 'push_deadline', 'push_order', 'push_outcome',
  'push_permit', 'push_arriving', 'push_rq_job', 'ttl'}
local FIRST_STATE = 7 -- what stands there from this field on only a job has that is not new

-- room: how many more may go this way now. rules: of everyone, see rule_table.lua. exceptions: the key of the set, or
-- nil.
-- rooms: by route, how many more the caller may send; a route that is not among them takes any number. The caller puts
-- its now, lease_us, until_text and worker beside them.
local direct = {room = 0, rules = nil, exceptions = nil, rooms = {}, leased = {}, waits = {}, claims = {}, claimed = {}}

-- new_job: {user, category, priority, data, targets, deadline}, or nil where there is more to look at.
local function new_job(id, lane, now)
  local job = redis.pcall('HMGET', job_key(id), unpack(NEW_JOB))
  if job.err then return nil end
  local origin, status, said, data, targets, ends = unpack(job, 1, FIRST_STATE - 1)
  if origin ~= lane or status ~= 'queued' or not (data and targets) then return nil end
  for i = FIRST_STATE, #NEW_JOB do
    if job[i] then return nil end
  end
  local deadline = ends and number(ends)
  if ends and not (deadline and deadline > now) or id:find('[\128-\255]') then return nil end
  local meta = steering(said)
  if not meta or meta.zone or meta.collapse_id or meta.expires_in and not deadline then return nil end
  return {user = meta.user, category = meta.category, priority = meta.priority, data = data, targets = targets,
    deadline = deadline}
end

-- nothing_waits: for this user; and the rules of everyone are the user's.
function direct.nothing_waits(user)
  local waits = direct.waits[user]
  if waits == nil then
    if direct.rules.forgets then remember(user) end
    waits = redis.call('EXISTS', backlogs_key(user)) == 1
      or direct.exceptions and redis.call('SISMEMBER', direct.exceptions, user) == 1
      or direct.rules.prefers and redis.call('HEXISTS', '@preferences', user) == 1
    direct.waits[user] = waits
  end
  return not waits
end

-- claim_of: the caller's claim on what is in flight of a backlog, see claims.lua; or nil where it has none.
function direct.claim_of(user, category)
  local key = claim_key(user, category)
  local held = direct.claims[key]
  if not held then
    local n, elsewhere, left = claim_of(user, category, direct.worker, direct.now)
    held = {user = user, category = category, before = n, n = n, closed = elsewhere or left}
    direct.claims[key] = held
    if not held.closed then direct.claimed[#direct.claimed + 1] = held end
  end
  return not held.closed and held
end

-- has_room: whether the providers let it go now: their projects, the devices, and what the caller may send by a route.
function direct.has_room(plan, bypass)
  local rules = direct.rules
  if plan.limited then return false end
  for _, target in ipairs(plan.of) do
    if device_policy(rules, 0, target, bypass) then return false end
  end
  return not lacking(rules, direct.rooms, plan.needs, direct.now)
end

-- wait: the first to stand in a backlog of this user, where the rules let it go at µs `opens`. by: see *set_wake_ups*.
function direct.wait(user, category, lane, id, opens, by)
  local own = direct.rules.categories[category]
  redis.call('HSET', backlogs_key(user), '#pace', text(math.max(pace(direct.rules.users[1]), pace(own))))
  set_wake_ups(user, {{category = category, lane = lane, head = id, at = opens, by = by}}, direct.now, nil)
end

-- send: the job goes, under a permit that is its place.
function direct.send(id, lane, job, backlog, plan)
  local order = orders.next()
  local permit = text(order)
  local place = job.priority == 'high' and text(order - HIGH) or permit
  direct.trim = order % 8 == 0
  count_sends(direct, job.user, job.category, direct.rules.users[1], backlog.policy, permit, backlog.cost)
  spend_room(direct.rules, direct.rooms, plan.needs, direct.now)
  if backlog.cost == 1 then lease_job(direct, id, permit, lane, 'push_order', place)
  else
    lease_job(direct, id, permit, lane, 'push_order', place, 'push_counted', text_of_counted(permit, backlog.cost))
  end
  direct.room, backlog.held.n = direct.room - 1, backlog.held.n + 1
  direct.leased[#direct.leased + 1] = {id, permit, job.user, job.category, job.data,
    job.deadline and job.deadline - direct.now or false, 0, 0, false, false}
end

-- take: leases a job that has just come from the queue of `lane`. Returns false where it is to go through its backlog;
-- and where nothing but the rules holds it back, its category, the µs at which they let it go, and what decides it.
function direct.take(id, lane)
  local job = direct.room > 0 and new_job(id, lane, direct.now)
  if not job then return false end
  local rules, user, category = direct.rules, job.user, job.category
  local own = rules.categories[category]
  if not own or rules.digests and rules.digests[category] or not direct.nothing_waits(user) then return false end
  local backlog = {category = category, head = id, policy = own, bypass = rules.bypass[category],
    cost = rules.costs and rules.costs[category] or 1, held = direct.claim_of(user, category)}
  if not backlog.held then return false end
  local opens = opens_at(rules, user, rules.users[1], backlog, {}, direct.now)
  if opens > direct.now then
    return false, not (rules.drops and rules.drops[category]) and category, opens, backlog.by
  end
  local plan = plan_of(job.targets, rules.apps and rules.apps[category])
  if not direct.has_room(plan, backlog.bypass) then return false end
  direct.send(id, lane, job, backlog, plan)
  return true
end

-- write: what was gathered for all of them.
function direct.write()
  if #direct.leased == 0 then return end
  write_gathered()
  write_projects(direct.now)
  for _, held in ipairs(direct.claimed) do
    if held.n > held.before then
      claim(held.user, held.category, direct.worker, held.n, nil, direct.lease_us, direct.until_text)
    end
  end
  redis.call('HINCRBY', '@stats', 'dispatched', #direct.leased)
end
