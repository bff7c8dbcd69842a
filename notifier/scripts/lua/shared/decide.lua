--! exports set_at is_due decide ask
-- Decide: whether the head of a line may go now. What the rules say is in opens.lua; here is what the providers say,
-- and what is to be known first.

local MAX_UNREAD = 25

-- wants: the caller is to read something, and the line is shut until it has: job id, user, data or '', zone or ''.
local function wants(look, user, line, id, data, zone)
  local asked = look.asked
  asked[#asked + 1], asked[#asked + 2], asked[#asked + 3], asked[#asked + 4] = id, user.name, data, zone
  line.unread = true
end

-- set_at: line.at, when the head may go: by the rules; or where the line is shut, at the end of the lease, since the
-- settling, or the caller's next call, opens the gate before.
local function set_at(look, user, line)
  if line.at then return end
  if line.elsewhere or line.unread then
    line.at = look.now + look.lease_us
    return
  end
  local unknown
  line.at, unknown = opens_at(look.rules, user.name, user.policy, line, user.next, look.now)
  if line.at then return end
  line.at = look.now + look.lease_us
  wants(look, user, line, line.head, '', unknown)
end

-- ask: has the caller read whom the jobs at the head of a line are for. Nothing of the line goes before.
local function ask(look, user, line)
  for _, id in ipairs(redis.call('ZRANGE', line.key, 0, MAX_UNREAD - 1)) do
    local data, targets = unpack(redis.call('HMGET', job_key(id), 'data', 'push_targets'))
    if data and not targets then wants(look, user, line, id, data, '') end
  end
  line.unread = true
end

local function has_expired(line, now)
  if line.expires == nil then line.expires = redis.call('HGET', job_key(line.head), 'push_deadline') end
  local ends = number(line.expires)
  return ends and ends <= now
end

-- is_due: whether something is to become of the head of a line now: it goes, or ends.
local function is_due(look, user, line)
  set_at(look, user, line)
  if line.rank == MAX_RANK or line.elsewhere or line.unread or line.parked then return false end
  return line.at <= look.now or has_expired(line, look.now) or is_dropped(line)
end

-- is_shut: whether this may not go by this route now: its circuit is open, or an older rest of its line waits for it.
local function is_shut(look, line, target, job)
  local hold = look.circuits and look.circuits[target.route]
  if not hold then return false end
  if hold.state == 'open' and hold.probe ~= '1' and (hold.probe ~= 'new' or job.refusals) then return true end
  return has_older_rest(line.key, target.route, line.order)
end

local function open_circuit(look, name, ...)
  look.circuits = look.circuits or {}
  look.circuits[name] = look.circuits[name] or {}
  redis.call('SADD', '@routes', name)
  change_hold(name, look.circuits[name], ...)
  return name
end

-- fill: the project of `route` has no room for `cost` more: it is held until it has.
local function fill(look, route, project, cost)
  local at, room = project_frees(project, cost)
  look.earliest = math.min(look.earliest, at)
  return open_circuit(look, route .. '|full', 'state', 'full', 'until', text(at), 'room', text(room))
end

-- busy: this worker may send no more by `route` now; what waits for it in `lane` is held.
local function busy(look, route, lane)
  local name, since = route .. '|busy|' .. lane, text(look.now)
  if not (look.circuits and look.circuits[name]) then
    open_circuit(look, name, 'state', 'busy', 'route', route, 'lane', lane, 'since', since, 'until', since)
  end
  note_due(look.now, lane) -- another worker may have room
  return name
end

-- lacks_room: what to wait for, or nil.
local function lacks_room(look, needs, lane)
  local need, project, cost = lacking(look.rules, look.rooms, needs, look.now)
  if not need then return nil end
  return {project and fill(look, need.route, project, cost) or busy(look, need.by, lane)}
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

-- split_targets: those by whose routes it may go, and those that are shut; nil where it is 'behind': an older one of
-- its line is in flight, and was taken while a route of this one was shut. Its rest is to go first.
local function split_targets(look, line, job, targets)
  local open, shut = {}, {}
  for _, target in ipairs(targets) do
    local of = is_shut(look, line, target, job) and shut or open
    if of == open and line.left and line.left[target.route] then return nil end
    of[#of + 1] = target
  end
  return open, shut
end

-- devices_open: when all these devices have room, and whether those that have none are sent background pushes alone.
local function devices_open(look, line, index, open)
  local at, in_background = 0, true
  for _, target in ipairs(open) do
    local free = device_next(look.rules, index, target, line.bypass)
    in_background = in_background and (free <= look.now or target.kind == 'b')
    at = math.max(at, free)
  end
  return at, in_background
end

-- decide: whether the providers let the head of a line go now. Returns 'go', its needs, its targets (nil where no
-- device is counted and nothing is held), and those that are shut; 'parked' and what it waits for; 'wait', until when,
-- and whether it waits because it is a background push; 'unread'; or 'behind', see *split_targets*.
local function decide(look, user, line, job)
  local rules = look.rules
  if not (rules.limited or look.circuits or look.rooms or line.left) then return 'go', {} end
  if not job.targets then return 'unread' end
  local app = rules.apps and rules.apps[line.category]
  local plan = plan_of(job.targets, app)
  if not (look.circuits or line.left or job.answered or plan.limited or counts_devices(rules, user.index, plan)) then
    local full = lacks_room(look, plan.needs, line.lane)
    if full then return 'parked', full end
    return 'go', plan.needs
  end
  local open, shut = split_targets(look, line, job, targets_of(job.targets, job.answered, app))
  if not open then return 'behind' end
  if #open == 0 and #shut > 0 then return 'parked', routes_of(shut) end
  local at, in_background = devices_open(look, line, user.index, open)
  if at > look.now then return 'wait', at, in_background end
  local needs = needs_of(open)
  local full = lacks_room(look, needs, line.lane)
  if full then return 'parked', full end
  return 'go', needs, open, shut
end
