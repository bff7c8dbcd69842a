--! exports direct EXCEPTIONS
-- The direct way: what comes from its queue and need not wait is leased at once, in the same step, and never stands in
-- a line. It leaves Redis as *admit* would have. Only the plain case goes this way: a new job of a producer of ours,
-- for a user of whom nothing waits, under rules that let it go. Where they do not, it is the first in its line, and its
-- user's gate is set at once. All else is looked at by *admit*.
--   @exceptions:<name>  set of the users that have other rules than everyone; their jobs go through their lines
local EXCEPTIONS = '@exceptions:'
local NEW_JOB = {'origin', 'status', 'meta', 'data', 'push_targets', 'push_deadline', 'push_order', 'push_outcome',
  'push_permit', 'push_arriving', 'push_rq_job', 'ttl'}
local FIRST_STATE = 7 -- what stands there from this field on only a job has that is not new

-- room: how many more may go this way now. rules: of everyone, see gates.lua. exceptions: the key of the set, or nil.
-- rooms: by route, how many more the caller may send; a route that is not among them takes any number.
local direct = {room = 0, rules = nil, exceptions = nil, rooms = {}, leased = {}, waits = {}, claims = {}, claimed = {}}

-- new_job: the fields of NEW_JOB and what the meta tells, or nil where there is more to look at.
local function new_job(id, lane, now)
  local job = redis.pcall('HMGET', job_key(id), unpack(NEW_JOB))
  if job.err or job[1] ~= lane or job[2] ~= 'queued' or not (job[4] and job[5]) then return nil end
  for i = FIRST_STATE, #NEW_JOB do
    if job[i] then return nil end
  end
  local deadline = job[6] and number(job[6])
  if job[6] and not (deadline and deadline > now) or id:find('[\128-\255]') then return nil end
  local meta = steering(job[3])
  if not meta or meta.zone or meta.collapse_id or meta.expires_in and not deadline then return nil end
  return job, meta, deadline
end

-- nothing_waits: for this user; and the rules of everyone are the user's.
function direct.nothing_waits(user)
  local waits = direct.waits[user]
  if waits == nil then
    waits = redis.call('EXISTS', lines_key(user)) == 1
      or direct.exceptions and redis.call('SISMEMBER', direct.exceptions, user) == 1
    direct.waits[user] = waits
  end
  return not waits
end

-- claim_of: the caller's claim on what is in flight of a line, see claims.lua; or nil where it has none.
function direct.claim_of(user, category, worker, now)
  local key = claim_key(user, category)
  local held = direct.claims[key]
  if not held then
    local n, elsewhere, left = claim_of(user, category, worker, now)
    held = {user = user, category = category, before = n, n = n, closed = elsewhere or left}
    direct.claims[key] = held
    if not held.closed then direct.claimed[#direct.claimed + 1] = held end
  end
  return not held.closed and held
end

-- has_room: whether the providers let it go now: their projects, the devices, and what the caller may send by a route.
function direct.has_room(plan, bypass, now)
  local rules = direct.rules
  if plan.limited then return false end
  for _, target in ipairs(plan.of) do
    if device_policy(rules, 0, target, bypass) then return false end
  end
  for _, need in ipairs(plan.needs) do
    if (direct.rooms[need.by] or 1) <= 0 then return false end
    local project = project_of(rules, need.route, need.platform, now)
    if project and project.sum + math.min(need.n, project.limit) > project.limit then return false end
  end
  return true
end

-- spend: counts what goes with its projects, and against the caller's room.
function direct.spend(plan, now)
  for _, need in ipairs(plan.needs) do
    local project, room = project_of(direct.rules, need.route, need.platform, now), direct.rooms[need.by]
    if project then count_project(project, need.n) end
    if room then direct.rooms[need.by] = room - need.n end
  end
end

-- wait: the first to stand in a line of this user, where the rules let it go at µs `opens`.
function direct.wait(user, category, lane, id, opens, now)
  local own = direct.rules.c[category]
  redis.call('HSET', lines_key(user), '#pace', text(math.max(pace(direct.rules.u[1]), pace(own))))
  set_gates(user, {{category = category, lane = lane, head = id, at = opens}}, now, nil)
end

-- take: leases a job that has just come from the queue of `lane`. Returns false where it is to go through its line; and
-- where nothing but the rules holds it back, its category and the µs at which they let it go.
function direct.take(id, lane, worker, now, lease, until_text)
  if direct.room <= 0 then return false end
  local job, meta, deadline = new_job(id, lane, now)
  if not job then return false end
  local rules, user, category = direct.rules, meta.user, meta.category
  local own, digests = rules.c[category], rules.e and rules.e[category]
  if not own or digests or not direct.nothing_waits(user) then return false end
  local held = direct.claim_of(user, category, worker, now)
  if not held then return false end
  local bypass, cost, policy = rules.b[category], rules.n and rules.n[category] or 1, rules.u[1]
  local sent, own_sent = sent_key(user), sent_key(user, category)
  local opens = bypass and 0 or math.max((next_for(sent, policy, cost)), (next_for(own_sent, own, cost)))
  if opens > now then return false, not (rules.h and rules.h[category]) and category, opens end
  local plan = plan_of(job[5], rules.a and rules.a[category])
  if not direct.has_room(plan, bypass, now) then return false end

  local order = orders.next()
  local number_text, trim, ends = text(order), order % 8 == 0, now + lease
  local permit = cost > 1 and number_text .. 'x' .. cost or number_text
  if not is_empty(policy) then record(sent, policy, permit, ends, until_text, now, trim, cost) end
  if not is_empty(own) then record(own_sent, own, permit, ends, until_text, now, trim, cost) end
  direct.spend(plan, now)
  gather('ZADD', '@rq:wip:' .. lane, '+inf', id .. ':' .. permit)
  gather('ZADD', '@leases', until_text, id)
  if meta.priority == 'high' then number_text = text(order - HIGH) end
  redis.call('HSET', job_key(id), 'status', 'started', 'push_order', number_text, 'push_permit', permit,
    'worker_name', worker)
  direct.room, held.n = direct.room - 1, held.n + 1
  direct.leased[#direct.leased + 1] = {id, permit, user, category, job[4], deadline and deadline - now or false, 0, 0,
    false, false}
  return true
end

-- write: what was gathered for all of them.
function direct.write(worker, now, lease, until_text)
  if #direct.leased == 0 then return end
  write_gathered()
  write_projects(now)
  for _, held in ipairs(direct.claimed) do
    if held.n > held.before then claim(held.user, held.category, worker, held.n, nil, lease, until_text) end
  end
  redis.call('HINCRBY', '@stats', 'dispatched', #direct.leased)
end
