--! exports step_aside lower passes_lowered reschedule
-- Reschedule: what does not go now, and when its user is looked at again.
local MAX_EXPECTED = 100

-- step_aside: the rest of what other routes took leaves its line, or it would keep back what can go by them. It comes
-- back to its place when its route is up, or when it expires. What has met a fault lets the others of its line pass.
local function step_aside(look, line, job, names)
  redis.call('ZREM', line.key, line.head)
  history.note(line.head, job.accepted, job.held, look.now, 'p' .. names[1])
  redis.call('ZADD', '@later', text(job.deadline or FAR), line.head)
  if job.deadline then look.earliest = math.min(look.earliest, job.deadline) end
  for _, name in ipairs(names) do
    redis.call('ZADD', parked_key(name), text(line.order + (job.refusals and FAR or 0)), 'j' .. line.head)
    if not job.refusals then
      redis.call('ZADD', rests_key(line.key, name), text(line.order), line.head)
      redis.call('EXPIRE', rests_key(line.key, name), RESTS_KEPT)
    end
  end
end

-- lower: a background push whose device has no room, as Apple takes three an hour, steps behind the alerts of its line,
-- which have no such limit. It keeps its place among the background pushes. Returns when the head is to be looked at
-- again, or nil where that may be at once. at: when its device has room.
local function lower(look, user, line, at)
  local order = tonumber(redis.call('ZSCORE', line.key, line.head))
  if line.drops or order >= LOWERED / 2 then return at end
  if look.to_lower == 0 then return look.now + 1 end -- the others of the line in the next call
  look.to_lower = look.to_lower - 1
  order = text(order + LOWERED)
  redis.call('ZADD', line.key, order, line.head)
  redis.call('HSET', job_key(line.head), 'push_order', order)
  redis.call('HSET', lines_key(user.name), '#lowered', '1')
  peek_line(line)
end

-- passes_lowered: a background push at the head would go before an older one that waits for its device.
local function passes_lowered(line, job)
  if line.drops or line.order >= LOWERED / 2 or not is_background(job.targets) then return false end
  local first = redis.call('ZRANGEBYSCORE', line.key, text(LOWERED / 2), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  return first and first - LOWERED < line.order
end

-- waits_for: for what is held under `name` the lanes in which a head of the user waits: 'first', or 'last' where all of
-- them were refused before.
local function waits_for(user, name)
  local waits = {}
  for _, line in ipairs(user.lines) do
    for _, of_line in ipairs(line.parked or {}) do
      if of_line == name then
        waits[line.lane] = waits[line.lane] ~= 'first' and line.refused and 'last' or 'first'
      end
    end
  end
  return waits
end

-- park: the user stands, in each of these lanes, where the heads of the parked lines wait, and nowhere else; behind
-- those who were due before `since`; behind them who waits for a circuit with a head that was refused before.
local function park(look, user, lanes, since)
  for name, hold in pairs(look.circuits) do
    local waits = waits_for(user, name)
    for lane in pairs(lanes) do
      local member = 'u' .. lane .. ' ' .. user.name
      if waits[lane] then
        local at = math.min(since, look.now)
        if waits[lane] == 'last' and hold.state == 'open' then at = look.now + FAR end
        redis.call('ZADD', parked_key(name), 'NX', text(at), member)
      else redis.call('ZREM', parked_key(name), member) end
    end
  end
end

-- expect_all: tells RQ when those behind the heads should go. Once for a user who begins to wait; whoever joins a
-- line later learns it from *pull*.
local function expect_all(look, user)
  local step = pace(user.policy)
  for _, line in ipairs(user.lines) do step = math.max(step, pace(line.policy)) end
  if look.to_expect <= 0 or redis.call('HSET', lines_key(user.name), '#pace', text(step)) == 0 then return end
  for _, line in ipairs(user.lines) do
    local behind = redis.call('ZRANGE', line.key, 1, math.min(MAX_EXPECTED, look.to_expect))
    for n, id in ipairs(behind) do
      local origin = redis.call('HGET', job_key(id), 'origin')
      if origin then gather('ZADD XX', '@rq:scheduled:' .. origin, seconds(look.now + n * step), id) end
    end
    look.to_expect = look.to_expect - #behind
  end
end

-- tell_waiting: the caller hears of the heads that the rules hold back.
local function tell_waiting(look, user)
  local waits = look.waits
  for _, line in ipairs(user.lines) do
    if line.unread then line.at = nil end
    set_at(look, user, line)
    if line.at > look.now and not line.elsewhere and not line.unread and not line.parked then
      if is_dropped(line) then -- there was no room for it: it is due still
        line.at = look.now
      else
        for _, value in ipairs({line.head, user.name, line.category, line.at - look.now}) do
          waits[#waits + 1] = value
        end
      end
    end
  end
end

-- set_all_gates: in each lane at the earliest time of its lines; in the lanes that all lines have left none stays.
local function set_all_gates(look, user, lanes)
  local gates, whole, now = set_gates(user.name, user.lines, look.now, user.turn), user.whole, look.now
  if whole then
    local least = math.huge
    for _, line in ipairs(user.lines) do
      if not line.parked then least = math.min(least, line.at) end
    end
    local of_user = bypasses_any(look.rules) and 0 or next_for(user.sent, user.policy, 1)
    set_part_gates(user.name, whole.lanes, part_gate(user.name, whole, now, of_user, least, user.sends > 0))
  end
  for lane in pairs(lanes) do
    if not gates[lane] and not (whole and whole.lanes[lane]) then gather('ZREM', '@gates:' .. lane, user.name) end
  end
end

-- reschedule: leaves the user at the moments when the next heads may go. lanes: those that a gate or a line of the user
-- stood in; since: since when the user was due.
local function reschedule(look, user, lanes, since)
  tell_waiting(look, user)
  for category, of in pairs(user.flying) do
    claim(user.name, category, look.worker, of.n, of.left, look.lease_us, look.until_text)
  end
  set_all_gates(look, user, lanes)
  if look.circuits then park(look, user, lanes, since) end
  if #user.lines > 0 or user.whole then expect_all(look, user)
  elseif not user.closed then look.emptied[#look.emptied + 1] = lines_key(user.name) end
end
