--! exports judge note_probe
-- What the providers have to say of a head. A part of *admit*, whose rules, holds, rooms, now, worker and earliest it
-- uses.

-- is_shut: whether this may not go by this route now: its circuit is open, or an older rest of its line waits for it.
local function is_shut(line, target, job)
  local hold = holds and holds[target.route]
  if not hold then return false end
  if hold.state == 'open' and hold.probe ~= '1' and (hold.probe ~= 'new' or job.refusals) then return true end
  return has_older_rest(line.key, target.route, line.order)
end

-- fill: the project of `route` has no room for `cost` more: it is held until it has.
local function fill(route, project, cost)
  local name, at, room = route .. '|full', project_frees(project, cost)
  holds = holds or {}
  holds[name] = holds[name] or {}
  redis.call('SADD', '@routes', name)
  change_hold(name, holds[name], 'state', 'full', 'until', text(at), 'room', text(room))
  earliest = math.min(earliest, at)
  return name
end

-- busy: this worker may send no more by `route` now; what waits for it in `lane` is held.
local function busy(route, lane)
  local name = route .. '|busy|' .. lane
  holds = holds or {}
  if not holds[name] then
    holds[name] = {}
    redis.call('SADD', '@routes', name)
    local since = text(now)
    change_hold(name, holds[name], 'state', 'busy', 'route', route, 'lane', lane, 'since', since, 'until', since)
  end
  note_due(now, lane) -- another worker may have room
  return name
end

-- lacks_room: the projects that have none are held. Returns what to wait for, or nil.
local function lacks_room(needs, lane)
  for _, need in ipairs(needs) do
    -- A notification with more devices than there is room goes as well, or it never would.
    if rooms and (rooms[need.by] or 1) <= 0 then return {busy(need.by, lane)} end
    local project = project_of(rules, need.route, need.platform, now)
    local cost = project and math.min(need.n, project.limit)
    if project and project.sum + cost > project.limit then return {fill(need.route, project, cost)} end
  end
end

local function needs_of(targets)
  local needs, by_route = {}, {}
  for _, target in ipairs(targets) do
    local need = by_route[target.route]
    if not need then
      need = {route = target.route, by = target.by, platform = target.platform, n = 0}
      by_route[target.route], needs[#needs + 1] = need, need
    end
    need.n = need.n + 1
  end
  return needs
end

-- judge: whether the providers let the head of a line go now. Returns 'go', its needs, its targets (nil where no device
-- is counted and nothing is held), and those that are shut; 'parked' and what it waits for; 'wait', until when, and
-- whether it waits because it is a background push; 'unread'; or 'behind': an older one of its line is in flight, and
-- was taken while a route of this one was shut: its rest is to go first.
local function judge(line, job, index)
  if not (rules.w or holds or rooms or line.left) then return 'go', {} end
  if not job.targets then return 'unread' end
  local app = rules.a and rules.a[line.category]
  local plan = plan_of(job.targets, app)
  if not (holds or line.left or job.answered or plan.limited or counts_devices(rules, index, plan)) then
    local full = lacks_room(plan.needs, line.lane)
    if full then return 'parked', full end
    return 'go', plan.needs
  end
  local targets = targets_of(job.targets, job.answered, app)
  local open, shut, at = {}, {}, 0
  for _, target in ipairs(targets) do
    local of = is_shut(line, target, job) and shut or open
    if of == open and line.left and line.left[target.route] then return 'behind' end
    of[#of + 1] = target
  end
  if #open == 0 and #shut > 0 then
    local names = {}
    for _, target in ipairs(shut) do names[#names + 1] = target.route end
    return 'parked', names
  end
  local in_background = true
  for _, target in ipairs(open) do
    local free = device_next(rules, index, target, line.bypass)
    in_background = in_background and (free <= now or target.kind == 'b')
    at = math.max(at, free)
  end
  if at > now then return 'wait', at, in_background end
  local needs = needs_of(open)
  local full = lacks_room(needs, line.lane)
  if full then return 'parked', full end
  return 'go', needs, open, shut
end

-- note_probe: what goes by a route whose circuit is open is the probe.
local function note_probe(route)
  local hold = holds and holds[route]
  if hold and hold.state == 'open' then
    local again = now + hold.interval
    change_hold(route, hold, 'probe', '', 'prober', worker, 'until', text(again), 'others', text(again))
    earliest = math.min(earliest, again)
  end
end
