--! on_demand set_at ask is_due decide
--! needs change_hold counts_devices devices_open has_older_rest is_dropped job_key lacking MAX_RANK needs_of note_due
--! needs number opens_at order_of overall_opens waiting_key plan_of project_frees routes_of targets_of text
-- Decide: whether the head of a backlog may go now. admits_at.lua applies the rules. This piece applies the providers'
-- limits and the holds, and asks the caller for what must be known first.

local MAX_UNREAD = 25

-- wants: asks the caller to write the zone or, if it is '', to read for whom the job is. The backlog is shut so long.
local function wants(look, backlog, id, data, zone)
  local asked = look.asked
  asked[#asked + 1], asked[#asked + 2], asked[#asked + 3] = id, data, zone
  backlog.unread = true
end

-- set_at: sets and returns backlog.at, when the rules let the head go. While another worker has jobs of the backlog, it
-- is a lease from now, as a settlement comes before; if the caller is asked, it is now, as the caller pulls at once.
local function set_at(look, user, backlog)
  local at, unknown = backlog.elsewhere and look.now + look.lease_us or look.now, nil
  if not (backlog.elsewhere or backlog.unread) then
    local opens
    opens, unknown = opens_at(look.rules, user, backlog, look.now)
    at = opens or at
  end
  if unknown then wants(look, backlog, backlog.head, '', unknown) end
  backlog.at = at
  return at
end

-- ask: asks the caller to read for whom the jobs at the head of a backlog are. No job of the backlog goes before.
local function ask(look, backlog)
  for _, id in ipairs(redis.call('ZRANGE', backlog.key, 0, MAX_UNREAD - 1)) do
    local data, targets = unpack(redis.call('HMGET', job_key(id), 'data', 'push_targets'))
    if not targets then wants(look, backlog, id, data or '', '') end
  end
  backlog.unread = true
end

local function has_expired(backlog, now)
  local ends = number(redis.call('HGET', job_key(backlog.head), 'push_deadline'))
  return ends and ends <= now
end

-- is_due: whether the head of a backlog is to be tried now: its rules let it go, it has expired, or it is dropped.
local function is_due(look, user, backlog)
  local at = backlog.at or set_at(look, user, backlog)
  if backlog.rank == MAX_RANK or backlog.elsewhere or backlog.unread or backlog.waits_for then return false end
  return at <= look.now or has_expired(backlog, look.now) or is_dropped(backlog)
end

local function is_paused(hold, now) return hold.state == 'paused' and tonumber(hold['until']) > now end

-- paused_by: the name of the pause that holds the head of a backlog, whatever its route; or nil.
local function paused_by(look, user, backlog)
  for _, name in ipairs({'all:', 'lane:' .. backlog.lane, 'category:' .. backlog.category, 'user:' .. user.name}) do
    local hold = look.circuits[name]
    if hold and is_paused(hold, look.now) then return name end
  end
end

-- is_shut: whether the job may not go by this target's route now: the route is paused, its circuit is open, or the rest
-- of an older notification of the backlog waits for it.
local function is_shut(look, backlog, target, job)
  local hold = look.circuits and look.circuits[target.route]
  if not hold then return false end
  if is_paused(hold, look.now) then return true end
  if hold.state == 'open' and hold.probe ~= '1' and (hold.probe ~= 'new' or job.refusals) then return true end
  return has_older_rest(backlog.key, target.route, order_of(backlog))
end

local function open_circuit(look, name, ...)
  look.circuits = look.circuits or {}
  look.circuits[name] = look.circuits[name] or {}
  redis.call('SADD', '@routes', name)
  change_hold(name, look.circuits[name], ...)
  return name
end

-- fill: holds a route until its project has room for `cost` more. Returns the hold's name.
local function fill(look, route, project, cost)
  local at, room = project_frees(project, cost)
  look.earliest = math.min(look.earliest, at)
  return open_circuit(look, route .. '|full', 'state', 'full', 'until', text(at), 'interval',
    text(project.bucket + project.interval), 'room', text(room))
end

-- busy: holds the users of `lane` who need a route by which this worker may send no more now. Returns the hold's name.
local function busy(look, route, lane)
  local name, since = route .. '|busy|' .. lane, text(look.now)
  if not (look.circuits and look.circuits[name]) then
    open_circuit(look, name, 'state', 'busy', 'route', route, 'lane', lane, 'since', since, 'until', since)
  end
  note_due(look.now, lane) -- another worker may have room
  return name
end

-- lacks_room: {name of the hold to wait for}, or nil.
local function lacks_room(look, needs, lane)
  local need, project, cost = lacking(look.rules, look.rooms, needs, look.now)
  if not need then return nil end
  return {project and fill(look, need.route, project, cost) or busy(look, need.by, lane)}
end

-- split_targets: the targets whose routes are open to the job, and the others. Returns nil if the job is 'behind': an
-- older job of the backlog is in flight that left out one of these open routes. The rest of the older job goes first.
local function split_targets(look, backlog, job, targets)
  local open, shut = {}, {}
  for _, target in ipairs(targets) do
    local of = is_shut(look, backlog, target, job) and shut or open
    if of == open and backlog.claim.left and backlog.claim.left[target.route] then return nil end
    of[#of + 1] = target
  end
  return open, shut
end

-- is_in_turn: whether it is the user's turn, if users wait for the overall rate of a category: no other user has waited
-- longer, and fewer of the user's jobs went in this visit than *let_go_of_held* allows each user (`turn`).
local function is_in_turn(look, user, category, name)
  local turns = user.turns or {}
  local hold, had = look.circuits and look.circuits[name], turns[category] or 0
  user.turns, turns[category] = turns, had + 1
  if not hold then return true end
  local first = redis.call('ZRANGE', waiting_key(name), '0', '0', 'WITHSCORES')[2]
  return had < tonumber(hold.turn or 1) and (not first or tonumber(first) >= user.since)
end

-- paced_by: the name of the hold if the overall rate of the category, `rule`, is used up, or others come first; or nil.
local function paced_by(look, user, backlog, rule)
  local category = backlog.category
  local name, at, room = 'overall:' .. category .. '|full', overall_opens(look, rule, category)
  if at <= look.now and is_in_turn(look, user, category, name) then return nil end
  look.earliest = math.min(look.earliest, at)
  local opens = text(math.max(at, look.now))
  return open_circuit(look, name, 'state', 'full', 'category', category, 'until', opens, 'interval', text(rule[2]),
    'room', text(room))
end

local ANY = {needs = {}} -- for a head that no provider and no worker limits
local function by_providers(look, user, backlog, job)
  local rules = look.rules
  local left = backlog.claim.left
  if not (rules.limited or look.circuits or look.rooms or left) then return 'go', ANY end
  local paused = look.circuits and paused_by(look, user, backlog)
  if paused then return 'waits_for_route', {waits_for = {paused}, paused = true} end
  if not job.targets then return 'unread' end
  local app = backlog.of.app
  local plan = plan_of(job.targets, app)
  local said = plan
  if look.circuits or left or job.answered or plan.limited or counts_devices(rules, user.index, plan) then
    local open, shut = split_targets(look, backlog, job, targets_of(job.targets, job.answered, app))
    if not open then return 'behind' end
    if #open == 0 and #shut > 0 then return 'waits_for_route', {waits_for = routes_of(shut)} end
    local at, for_alerts = devices_open(look, user, backlog, open)
    if at > look.now then return 'wait', {at = at, for_alerts = for_alerts} end
    said = {needs = needs_of(open), open = open, shut = shut}
  end
  local full = lacks_room(look, said.needs, backlog.lane)
  if full then return 'waits_for_route', {waits_for = full} end
  return 'go', said
end

-- decide: whether the providers, and the overall rate of the category, let the head of a backlog go now. Returns the
-- verdict and its details:
--   'go'      needs: see *needs_of*; open, shut: the targets to which it goes now, and the others (nil if no device is
--             counted and no route is held)
--   'waits_for_route'  waits_for: the holds; paused: true for a pause, which holds back the whole notification
--   'wait'    at: when all its devices have room; for_alerts: when those have room that get no background push
--   'unread'  the caller must read first for whom it is
--   'behind'  see *split_targets*
local function decide(look, user, backlog, job)
  local verdict, said = by_providers(look, user, backlog, job)
  local rule = verdict == 'go' and backlog.of.overall
  local paced = rule and paced_by(look, user, backlog, rule)
  if paced then return 'waits_for_route', {waits_for = {paced}} end
  return verdict, said
end
