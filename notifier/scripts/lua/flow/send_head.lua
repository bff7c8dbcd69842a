--! on_demand send_head
--! needs change_hold count_overall count_sends forget_candidate gather history LANES lease_job leased_job
--! needs orders pass_on routes_of rules_of spend_devices spend_room text text_of_counted waits
-- Lease, of a backlog: its head goes, with what was decided.
local TRIM_EVERY = 8

-- note_probe: what goes by a route whose circuit is open is the probe.
local function note_probe(look, route)
  local hold = look.circuits and look.circuits[route]
  if not hold or hold.state ~= 'open' then return end
  local again = look.now + hold.interval
  change_hold(route, hold, 'probe', '', 'prober', look.worker, 'until', text(again), 'others', text(again),
    'first', '')
  look.earliest = math.min(look.earliest, again)
end

-- spend: counts what goes under `permit`: with the user, the category, all users, the projects and the devices.
local function spend(look, user, backlog, permit, said)
  local overall, needs = rules_of(look.rules, backlog.category).overall, said.needs
  count_sends(look, user, backlog, permit)
  spend_room(look.rules, look.rooms, needs, look.now)
  if overall then count_overall(look, overall, backlog.category, permit) end
  if look.circuits then
    for _, need in ipairs(needs) do note_probe(look, need.route) end
  end
  if said.open then spend_devices(look, user, backlog, said.open, permit) end
end

-- tell: what the worker needs to send it. names: the routes it is not to go by now, or false.
local function tell(look, user, backlog, job, permit, names, dropped)
  local is_new = job.attempts + job.crashes == 0 and not (job.answered or names or job.count or dropped or job.refusals)
  local rare = not is_new and {[LEASED.attempts] = job.attempts, [LEASED.crashes] = job.crashes,
    [LEASED.answered] = job.answered, [LEASED.shut] = names, [LEASED.stands_for] = job.count,
    [LEASED.dropped] = dropped, [LEASED.refusals] = job.refusals}
  local leased = leased_job(job.id, permit, user.name, backlog.category, job.data, job.deadline, look.now, rare)
  leased[LEASED.since_us] = user.since
  look.leased[#look.leased + 1] = leased
end

-- fly: counts it in the claim on its backlog; what is shut to it stays shut to those behind it.
local function fly(claim, shut)
  for _, target in ipairs(shut or {}) do
    claim.left = claim.left or {}
    claim.left[target.route] = true
  end
  claim.taken = claim.taken + 1
end

-- lease_head: the job is the worker's; what is out of the ordinary is noted beside its permit.
local function lease_head(look, job, permit, cost, said)
  local plain = cost == 1 and not said.open and said.needs
  if plain and not job.held then return lease_job(look, job.id, permit, job.origin) end
  local more = plain and {} or {'push_counted', text_of_counted(permit, cost, said.open, not said.needs)}
  if job.held then
    more[#more + 1], more[#more + 2] = 'push_held', history.add(job.accepted, job.held, look.now, 'f')
  end
  lease_job(look, job.id, permit, job.origin, unpack(more))
end

-- send_head: takes the head of backlog i. said: of *decide*; without needs it has expired, or it is not to wait:
-- dropped is what holds it back, as history.lua has it.
local function send_head(look, user, i, job, said)
  local number_of, backlog, shut = orders.next(), user.backlogs[i], said.shut
  local permit = text(number_of)
  look.trim = number_of % TRIM_EVERY == 0
  redis.call('ZREM', backlog.key, job.id)
  waits.add(backlog.why, -1)
  -- One that somebody enqueues again meanwhile may have another origin now.
  for _, lane in ipairs(job.status == 'scheduled' and {job.origin} or LANES) do
    gather('ZREM', '@rq:scheduled:' .. lane, job.id)
  end
  if job.deadline then gather('ZREM', '@expiring', job.id) end
  if job.collapse then forget_candidate(user.name, backlog.category, job.id, job.collapse) end
  lease_head(look, job, permit, backlog.cost, said)
  local names = shut and #shut > 0 and table.concat(routes_of(shut), ' ') or false
  tell(look, user, backlog, job, permit, names, said.dropped)
  fly(backlog.claim, shut)
  if said.needs then spend(look, user, backlog, permit, said) end
  pass_on(user, i)
end
