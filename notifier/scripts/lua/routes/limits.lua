--! on_demand await_devices counts_devices devices_open spend_devices close_device lacking spend_room project_frees
--! exports write_projects
--! needs backlog_key date_sends device_key job_key LOWERED next_for plan_of record targets_of text
-- Limits that a platform sets; see targets.lua.
-- In the rule table: a category has its app; limited: true if there is any limit; and by platform
--   devices      for each policy in users, two policies of a device: for messages under those rules, and for messages
--                that bypass them; or false if the user's rules are narrower
--   background   the policy of background pushes
--   collapsible  {burst, interval}
--   projects     {limit, interval, bucket}
--   @device:<device>      zset permit -> µs, as a user's sends
--   @device:<device>:c    µs at which the bucket of collapsible messages is full again (GCRA)
--   @project:<route>      hash bucket -> messages

-- device_policy: the policy that counts the sends to a device, or nil.
local function device_policy(rules, index, target, bypass)
  local of_users = rules.devices and rules.devices[target.platform]
  if of_users then
    local of_user = of_users[index + 1]
    return of_user and of_user[bypass and 2 or 1]
  end
  return target.kind == 'b' and rules.background and rules.background[target.platform]
end

-- counts_devices: whether a send by this plan may count for one of its devices, whatever its kind.
local function counts_devices(rules, index, plan)
  if not rules.devices then return false end
  for _, of in ipairs(plan.of) do
    local of_users = rules.devices[of.platform]
    if of_users and of_users[index + 1] then return true end
  end
  return false
end

-- burst_of: {how many collapsible messages a device may get at once, µs until it may get one more}, or nil.
local function burst_of(rules, target)
  return target.kind == 'c' and rules.collapsible and rules.collapsible[target.platform] or nil
end

-- devices_open: when all these devices have room, and when all have room that get no background push. It assumes that
-- sends in flight are settled now: they may be another user's, whose *settle* does not tell this user.
local function devices_open(look, user, backlog, targets)
  local rules, now, at, for_alerts = look.rules, look.now, 0, 0
  for _, target in ipairs(targets) do
    local key, free = device_key(target.device), 0
    local policy, burst = device_policy(rules, user.index, target, backlog.bypass), burst_of(rules, target)
    if policy then
      local opens, rule = next_for(key, policy, 1)
      free = math.min(opens, now + (policy.windows[2 * rule] or policy.gap))
    end
    local full = burst and redis.call('GET', key .. ':c')
    if full then free = math.max(free, math.min(full - (burst[1] - 1) * burst[2], now + burst[2])) end
    if target.kind ~= 'b' then for_alerts = math.max(for_alerts, free) end
    at = math.max(at, free)
  end
  return at, for_alerts
end

-- await_devices: sets backlog.least, for *opens_at*, to when the devices of a backlog's head have room. It leaves heads
-- to the visit that may go in part, by one of several routes, or that *lower* and *raise* may move.
-- some_lowered: whether the user has lowered jobs.
local function await_devices(look, user, backlog, some_lowered)
  local order = some_lowered and redis.call('ZSCORE', backlog_key(user.name, backlog.category), backlog.head)
  local is_lowered = order and tonumber(order) >= LOWERED / 2
  if some_lowered and not is_lowered then return end
  local targets, answered = unpack(redis.call('HMGET', job_key(backlog.head), 'push_targets', 'push_answered'))
  local plan = targets and plan_of(targets, backlog.of.app)
  if not plan or plan.needs[2] then return end
  local at, for_alerts = devices_open(look, user, backlog, targets_of(targets, answered, backlog.of.app))
  backlog.least = is_lowered and at or for_alerts
end

-- spend_devices: counts the sends of `permit` to these devices. They may arrive as late as the end of the lease, so a
-- bucket is fuller by a whole lease until *settle* corrects it.
local function spend_devices(look, user, backlog, targets, permit)
  local rules, now, lease = look.rules, look.now, look.lease_us
  for _, target in ipairs(targets) do
    local key, burst = device_key(target.device), burst_of(rules, target)
    local policy = device_policy(rules, user.index, target, backlog.bypass)
    if policy then record(key, policy, permit, now + lease, look.until_text, now, true, 1) end
    if burst then
      local full = math.max(tonumber(redis.call('GET', key .. ':c') or 0), now) + burst[2] + lease
      redis.call('SET', key .. ':c', text(full), 'PX', text(math.ceil((full - now) / 1000)))
    end
  end
end

-- close_device: dates a counted send at now, or gives it back if it never arrived. was_counted: this device was counted
-- for certain. late: the lease has ended, and the send may have been trimmed since.
local function close_device(look, job, target, was_counted, late)
  local key, policy = device_key(target.device), late and was_counted and device_policy(look.rules, job.index, target)
  date_sends(key, job.permit, 1, job.reached and look.now_text, policy and policy.horizon)
  local burst = was_counted and burst_of(look.rules, target)
  local full = burst and redis.call('GET', key .. ':c')
  if not full then return end
  -- If the send never arrived, the time since the lease began stays in the bucket: later sends were counted after it.
  full = full - math.max(0, job.lease_ends - look.now) - (job.reached and 0 or burst[2])
  redis.call('SET', key .. ':c', text(full), 'KEEPTTL')
end

-- read_project: a project's messages of the last interval, in buckets. The oldest bucket counts until all of it has
-- left the interval. A bucket in the future was written before Redis's clock was set back, and joins the running one.
local projects = {}
local function read_project(limit, route, now)
  local project = {limit = limit[1], interval = limit[2], bucket = limit[3], sum = 0, added = 0, counts = {}, old = {}}
  local key, running = '@project:' .. route, now - now % project.bucket
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    local from = tonumber(fields[i])
    if from > now then
      from = running
      redis.call('HDEL', key, fields[i])
      redis.call('HINCRBY', key, text(running), fields[i + 1])
    end
    if from + project.bucket + project.interval <= now then project.old[#project.old + 1] = fields[i]
    else
      project.counts[#project.counts + 1] = {from, tonumber(fields[i + 1])}
      project.sum = project.sum + fields[i + 1]
    end
  end
  project.mine = {running, 0}
  project.counts[#project.counts + 1] = project.mine
  projects[route] = project
  return project
end

-- lacking: the first of the needs without room now. If its project is full, also the project, and how many must fit.
-- rooms: {route: how many more the caller may send}, or nil; other routes take any number.
local function lacking(rules, rooms, needs, now)
  for i = 1, #needs do
    local need = needs[i]
    -- A notification with more devices than the room in all goes if there is any room, or it would never go.
    if rooms and (rooms[need.by] or 1) <= 0 then return need end
    local limit = rules.projects and rules.projects[need.platform]
    local project = limit and (projects[need.route] or read_project(limit, need.route, now))
    local cost = project and math.min(need.n, project.limit)
    if project and project.sum + cost > project.limit then return need, project, cost end
  end
end

-- spend_room: takes a notification's part of its projects' limits and of the caller's room.
local function spend_room(rooms, needs)
  for i = 1, #needs do
    local need = needs[i]
    local by, n, project = need.by, need.n, projects[need.route]
    if project then
      project.sum, project.added, project.mine[2] = project.sum + n, project.added + n, project.mine[2] + n
    end
    if rooms and rooms[by] then rooms[by] = rooms[by] - n end
  end
end

-- project_frees: when there is room for `cost` more, and for how many then.
local function project_frees(project, cost)
  table.sort(project.counts, function(a, b) return a[1] < b[1] end)
  local left = project.sum
  for _, count in ipairs(project.counts) do
    left = left - count[2]
    if left + cost <= project.limit then return count[1] + project.bucket + project.interval, project.limit - left end
  end
end

local function write_projects()
  for route, project in pairs(projects) do
    local key = '@project:' .. route
    if #project.old > 0 then redis.call('HDEL', key, unpack(project.old)) end
    if project.added > 0 then
      redis.call('HINCRBY', key, text(project.mine[1]), project.added)
      redis.call('PEXPIRE', key, text(math.ceil((project.interval + 2 * project.bucket) / 1000)))
    end
  end
end
