--! exports sign_of wake_leaders set_wake_ups wake_ups_due
-- Wake-ups: when a user who waits is looked at again.
-- expect: tells RQ until when a job waits, and the history why. Returns the job's own deadline in µs, if it has one.
local function expect(id, at, now, by)
  local job = redis.call('HMGET', job_key(id), 'origin', 'push_deadline', 'push_accepted', 'push_held')
  if job[1] then redis.call('ZADD', '@rq:scheduled:' .. job[1], 'XX', seconds(at), id) end
  if job[3] and by then
    history.note(id, job[3], job[4], now, type(by) == 'table' and history.rule_of(unpack(by)) or by)
  end
  return number(job[2])
end

-- sign_of: 1 where the most urgent lane goes first; every eighth send of a user who waits in several lanes goes the
-- other way round, so that the lower lanes do not starve. turn: the user's #turn.
local EVERY = 8
local function sign_of(turn) return (turn or 0) % EVERY == EVERY - 1 and -1 or 1 end

local YIELD = 1000000 -- µs; an idle leader looks as often by itself
local LANE_RANK = {urgent = 1, default = 2, bulk = 3}

local function goes_before(lane, other, sign)
  local rank, of_other = LANE_RANK[lane] or 4, LANE_RANK[other] or 4
  if rank ~= of_other then return rank * sign < of_other * sign end
  return lane < other
end

-- leads_alone: whether an idle leader of `lane` does not serve `other`.
local function leads_alone(lane, other)
  local leaders = idle_leaders()
  for i = 1, #leaders, 2 do
    if serves(leaders[i], lane) and not serves(leaders[i], other) then return true end
  end
  return false
end

-- yield: where heads in several lanes may go at one moment to come, the user's rules let one of them go. Of workers
-- that serve different lanes one is to look then: the others let it go first, and look only if it does not.
local function yield(wake_ups, now, turn)
  local first, sign = {}, nil
  for lane, at in pairs(wake_ups) do
    if at > now then
      sign = sign or sign_of(turn)
      if not first[at] or goes_before(lane, first[at], sign) then first[at] = lane end
    end
  end
  for lane, at in pairs(wake_ups) do
    local before = first[at]
    if before and before ~= lane and leads_alone(before, lane) then wake_ups[lane] = at + YIELD end
  end
end

local RELOOK = 1000000 -- µs
-- latest_wake_up: rules other than those that were taken up last may be out of date: a call may have been late. What
-- they say holds for a second at the most, then for as long again as the newer ones have been there. So a user waits
-- too long once at the most; and where hosts follow different rules for days, their users are looked at a few times
-- more.
local function latest_wake_up(now)
  idle_leaders()
  if not rules_version or not newest_rules.version or newest_rules.version == rules_version then return math.huge end
  return now + math.max(RELOOK, now - newest_rules.since)
end

local wake_ups_due = {} -- lane -> the earliest wake-up that was set here
local function wake_leaders()
  for lane, at in pairs(wake_ups_due) do note_due(at, lane) end
end

-- set_wake_ups: leaves a wake-up in each lane at the earliest `at` of the user's backlogs there, or where a head
-- expires before that, at its expiry; and the expected time of each backlog's head beside it. backlogs: array of
-- {category, lane, head, at,
-- parked: what the head waits for without a wake-up, save that of its expiry; elsewhere: the backlog is shut until
-- something is settled, for what expires in it too; by: what holds the head back, as history.lua has it, or of a rule
-- {'u' or 'c', policy, rule}; nil where that is not known}. turn: the user's #turn, or nil.
-- Returns the wake-ups by lane. The caller is to call *wake_leaders* in the end.
local function set_wake_ups(user, backlogs, now, turn)
  local wake_ups = {}
  for _, backlog in ipairs(backlogs) do
    local at = math.max(backlog.at, now)
    if backlog.parked then
      local deadline = expect(backlog.head, at, now, 'p' .. backlog.parked[1])
      at = deadline and math.max(now, deadline)
    else
      local deadline = at > now and expect(backlog.head, at, now, backlog.elsewhere and 'b' or backlog.by)
      if deadline and not backlog.elsewhere then at = math.max(now, math.min(at, deadline)) end
    end
    if at and (not wake_ups[backlog.lane] or at < wake_ups[backlog.lane]) then wake_ups[backlog.lane] = at end
  end
  local latest = latest_wake_up(now)
  for lane, at in pairs(wake_ups) do wake_ups[lane] = math.min(at, latest) end
  if next(wake_ups, (next(wake_ups))) then yield(wake_ups, now, turn) end
  for lane, at in pairs(wake_ups) do
    redis.call('ZADD', '@gates:' .. lane, text(at), user)
    wake_ups_due[lane] = math.min(wake_ups_due[lane] or math.huge, at)
  end
  return wake_ups
end
