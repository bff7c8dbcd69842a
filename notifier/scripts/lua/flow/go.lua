--! exports go
--! needs change_hold count_overall count_sends lease_job leased_job routes_of spend_devices spend_room text
--! needs text_of_counted
-- Go: leases a job that may go to its worker, from a queue or from a backlog.
local TRIM_EVERY = 8

-- note_probe: a job that goes by a route whose circuit is open is the probe.
local function note_probe(look, route)
  local hold = look.circuits and look.circuits[route]
  if not hold or hold.state ~= 'open' then return end
  local again = look.now + hold.interval
  change_hold(route, hold, 'probe', '', 'prober', look.worker, 'until', text(again), 'others', text(again),
    'first', '')
  look.earliest = math.min(look.earliest, again)
end

-- spend: counts the sends of `permit` for the user, the category, all users, the projects and the devices.
local function spend(look, user, backlog, permit, needs, open)
  count_sends(look, user, backlog, permit)
  spend_room(look.rooms, needs)
  local overall = backlog.of.overall
  if overall then count_overall(look, overall, backlog.category, permit) end
  if look.circuits then
    for _, need in ipairs(needs) do note_probe(look, need.route) end
  end
  if open then spend_devices(look, user, backlog, open, permit) end
end

-- leave_out: routes that are shut to this job stay shut to the jobs behind it. Returns the names of these routes.
local function leave_out(claim, shut)
  local routes = routes_of(shut)
  claim.left = claim.left or {}
  for _, route in ipairs(routes) do claim.left[route] = true end
  return table.concat(routes, ' ')
end

-- go: leases the job to the caller under this permit. Fields that few jobs have are written and returned only if they
-- are set. said: of *decide*; without needs the job has expired or is dropped: `dropped` is then the reason of
-- history.lua. Further fields of its hash may follow as arguments.
local function go(look, user, backlog, job, permit, said, ...)
  local id, needs, open, shut = job.id, said.needs, said.open, said.shut
  look.trim = permit % TRIM_EVERY == 0
  if needs then spend(look, user, backlog, permit, needs, open) end
  if needs and not open and backlog.cost == 1 then lease_job(look, id, permit, job.origin, ...)
  else
    lease_job(look, id, permit, job.origin, 'push_counted', text_of_counted(permit, backlog.cost, open, not needs), ...)
  end
  local claim, dropped, rare = backlog.claim, said.dropped, nil
  claim.taken = claim.taken + 1
  local names = shut and shut[1] and leave_out(claim, shut)
  if names or dropped or job.attempts or job.crashes or job.answered or job.count or job.refusals then
    rare = {[LEASED.attempts] = job.attempts, [LEASED.crashes] = job.crashes, [LEASED.answered] = job.answered,
      [LEASED.shut] = names, [LEASED.stands_for] = job.count, [LEASED.dropped] = dropped,
      [LEASED.refusals] = job.refusals}
  end
  look.leased[#look.leased + 1] = leased_job(id, permit, user.name, backlog.category, job.data, job.deadline, look.now,
    user.since, rare)
end
