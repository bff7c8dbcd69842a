--! on_demand step_aside lower passes_lowered reschedule
--! needs backlogs_key claim_of devices_open FAR gather history is_background is_dropped job_key look_by LOWERED
--! needs MAX_RANK next_for order_of overall_key waiting_key part_wake_up peek_next RESTS_KEPT rests_key set_at
--! needs set_part_wake_ups set_wake_ups targets_of text waits
-- Reschedule: sets when a user with heads that may not go now is looked at again.
-- step_aside: takes a job that some devices have received out of its backlog, where it would hold back the jobs behind
-- it. It comes back to its place at µs `at`, when one of these routes works, or when it expires. After a fault
-- (refusals) it lets younger jobs of its backlog pass. why: of history.lua.
local function step_aside(look, backlog, job, at, why, names)
  at = math.min(at, job.deadline or at)
  local order = order_of(backlog)
  redis.call('ZREM', backlog.key, backlog.head)
  waits.add(backlog.why, -1)
  history.note(backlog.head, job.noted, look.now, why)
  redis.call('ZADD', '@later', text(at), backlog.head)
  look.earliest = math.min(look.earliest, at)
  for _, name in ipairs(names) do
    redis.call('ZADD', waiting_key(name), text(order + (job.refusals and FAR or 0)), 'j' .. backlog.head)
    if not job.refusals then
      redis.call('ZADD', rests_key(backlog.key, name), text(order), backlog.head)
      redis.call('EXPIRE', rests_key(backlog.key, name), RESTS_KEPT)
    end
  end
end

-- first_lowered: the first of the background pushes that *lower* has moved, and its own order; or nil.
local function first_lowered(backlog)
  local first = redis.call('ZRANGEBYSCORE', backlog.key, text(LOWERED / 2), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return first[1], first[2] and first[2] - LOWERED
end

-- move_to: gives a job another place in its backlog. job: the head before.
local function move_to(backlog, id, order, job)
  redis.call('ZADD', backlog.key, text(order), id)
  if redis.call('EXISTS', job_key(id)) == 1 then redis.call('HSET', job_key(id), 'push_order', text(order)) end
  peek_next(backlog)
  if job.deadline and backlog.head ~= job.id then redis.call('ZADD', '@expiring', text(job.deadline), job.id) end
end

-- raise: a head waits for its device until µs `at`, and an older background push waits behind it: once the device of
-- that one has room, it gets its own place again. Returns when the head is to be looked at again, or nil for at once.
local function raise(look, user, backlog, job, at)
  if not user.lowered then return at end
  local id, order = first_lowered(backlog)
  if not id or order > order_of(backlog) then return at end
  local targets, answered = unpack(redis.call('HMGET', job_key(id), 'push_targets', 'push_answered'))
  local opens = devices_open(look, user, backlog, targets_of(targets or '', answered))
  if opens > look.now then return math.min(at, opens) end
  move_to(backlog, id, order, job)
end

-- lower: moves a background push whose device has no room (Apple takes three an hour) behind the alerts of its backlog,
-- which have no such limit. It keeps its place among the background pushes. Returns when the head is to be looked at
-- again, or nil for at once. at, for_alerts: see *devices_open*.
local function lower(look, user, backlog, job, at, for_alerts)
  if backlog.drops or order_of(backlog) >= LOWERED / 2 then return at end
  if for_alerts > look.now then return raise(look, user, backlog, job, for_alerts) end
  if look.to_lower == 0 then return look.now + 1 end -- the next call lowers others
  look.to_lower = look.to_lower - 1
  redis.call('HSET', backlogs_key(user.name), '#lowered', '1')
  user.lowered = true
  move_to(backlog, job.id, backlog.order + LOWERED, job)
end

-- passes_lowered: whether a background push at the head would overtake an older one that waits for its device.
local function passes_lowered(backlog, job)
  if backlog.drops or not is_background(job.targets) or order_of(backlog) >= LOWERED / 2 then return false end
  local _, first = first_lowered(backlog)
  return first and first < backlog.order
end

-- waits_for: the lanes in which a head of the user waits for the hold `name`: {lane: 'first', or 'last' if all these
-- heads were refused before}.
local function waits_for(user, name)
  local waits = {}
  for _, backlog in ipairs(user.backlogs) do
    for _, of_backlog in ipairs(backlog.waits_for or {}) do
      if of_backlog == name then
        waits[backlog.lane] = waits[backlog.lane] ~= 'first' and backlog.refused and 'last' or 'first'
      end
    end
  end
  return waits
end

-- wait_for_routes: lets the user wait, in each of these lanes, for the holds that hold its heads, and for no others.
-- Users wait in the order in which they were due; those whose heads a circuit has refused before wait behind the
-- others.
local function wait_for_routes(look, user, lanes, since)
  for name, hold in pairs(look.circuits) do
    local waits = waits_for(user, name)
    for lane in pairs(lanes) do
      local member = 'u' .. lane .. ' ' .. user.name
      if waits[lane] then
        local at = math.min(since, look.now)
        if waits[lane] == 'last' and hold.state == 'open' then at = look.now + FAR end
        local went = hold.category and claim_of(user.name, hold.category, look.claimant, look.now).taken > 0
        -- Users of whom one went wait behind the others, in the order in which theirs went.
        if went then at = look.now + redis.call('ZCARD', overall_key(hold.category)) end
        redis.call('ZADD', waiting_key(name), went and 'GT' or 'NX', text(at), member)
      else redis.call('ZREM', waiting_key(name), member) end
    end
  end
end

-- set_times: sets when each head is looked at again. A head that is to be dropped, and found no room, is still due.
local function set_times(look, user)
  for _, backlog in ipairs(user.backlogs) do
    if backlog.unread or not backlog.at then set_at(look, user, backlog) end
    local is_judged = not (backlog.elsewhere or backlog.unread or backlog.waits_for)
    if is_judged and backlog.at > look.now and is_dropped(backlog) then backlog.at = look.now end
  end
end

-- set_all_wake_ups: sets a wake-up in each lane, at the earliest time of its backlogs, and deletes those in lanes that
-- all backlogs have left.
local function set_all_wake_ups(look, user, lanes, kept)
  local wake_ups, whole, now = set_wake_ups(user.name, user.backlogs, look.now, user.turn, kept), user.whole, look.now
  if whole then
    local least = user.sends > 0 and now or math.huge
    for _, backlog in ipairs(user.backlogs) do
      if not backlog.waits_for then least = math.min(least, backlog.at) end
    end
    local of_user = look.rules.bypasses and 0 or next_for(user.sent, user.policy, 1)
    set_part_wake_ups(user.name, whole.lanes, part_wake_up(user.name, whole, now, of_user, least))
  end
  for lane in pairs(lanes) do
    if not wake_ups[lane] and not (whole and whole.lanes[lane]) then gather('ZREM', '@wakeups:' .. lane, user.name) end
  end
end

-- reschedule: sets the user's wake-ups to the moments at which the next heads may go. lanes: those in which the user
-- had a wake-up or a backlog. since: since when the user was due.
local function reschedule(look, user, lanes, since)
  -- A lane keeps its wake-up if the caller must write something first, and is due then; and, if nothing went, so does a
  -- lane of other workers: only they have judged its heads' devices and routes.
  local kept
  for _, backlog in ipairs(user.backlogs) do
    if backlog.unread or user.sends == 0 and backlog.rank == MAX_RANK then
      kept = kept or {}
      kept[backlog.lane], lanes[backlog.lane] = true, nil
      if backlog.unread then look_by(user.name, backlog.lane, look.now) end
    end
  end
  if user.backlogs[1] or user.whole then
    set_times(look, user)
    set_all_wake_ups(look, user, lanes, kept)
  else
    for lane in pairs(lanes) do gather('ZREM', '@wakeups:' .. lane, user.name) end
  end
  if look.circuits then wait_for_routes(look, user, lanes, since) end
  local is_gone = not (user.backlogs[1] or user.whole or user.closed)
  if is_gone then look.emptied[#look.emptied + 1] = backlogs_key(user.name) end
end
