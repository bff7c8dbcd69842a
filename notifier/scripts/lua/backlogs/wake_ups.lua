--! on_demand sign_of why_of set_wake_up set_part_wake_ups set_wake_ups set_user_wake_ups
--! needs await_devices backlog_key backlogs_key CLOSED closed_backlogs history idle_leaders is_closed is_dropped
--! needs job_key LANES lanes_of LONGEST_PART MAX_LINES new_backlog new_user newest_rules next_for number opens_at
--! needs read_backlogs rules_read seconds serves text waits wake_ups_due
-- Wake-ups: when a user with waiting jobs is looked at again.
-- expect: writes until when a job waits for RQ's tools, and the reason into its history. Returns its deadline in µs, or
-- nil.
local function expect(id, at, now, by)
  local job = redis.call('HMGET', job_key(id), 'origin', 'push_deadline', 'push_history')
  if job[1] then redis.call('ZADD', '@rq:scheduled:' .. job[1], 'XX', seconds(at), id) end
  if by then history.note(id, job[3], now, by) end
  return number(job[2])
end

-- sign_of: 1 if the most urgent lane goes first, -1 if the last one does: at every eighth send of a user with backlogs
-- in several lanes, so that lower lanes do not starve. turn: the user's #turn.
local EVERY = 8
local function sign_of(turn) return (turn or 0) % EVERY == EVERY - 1 and -1 or 1 end

local YIELD = 1000000 -- µs; idle leaders look this often anyway

-- leads_alone: whether an idle leader of `lane` does not serve `other`.
local function leads_alone(lane, other)
  for lanes in pairs(idle_leaders()) do
    if serves(lanes, lane) and not serves(lanes, other) then return true end
  end
  return false
end

-- yield: if heads in several lanes may go at the same moment, the user's rules let only one go. The first lane keeps
-- the moment. Another lane's wake-up moves by YIELD if an idle leader serves the first lane only: else workers of
-- different lanes would all look, and all but one in vain.
local function yield(wake_ups, now, turn)
  local first, sign = {}, sign_of(turn)
  for i = 1, #LANES do
    local lane = LANES[sign * i % (#LANES + 1)] -- from the last one on if sign is -1
    local at = wake_ups[lane] or now
    if at > now then
      first[at] = first[at] or lane
      if first[at] ~= lane and leads_alone(first[at], lane) then wake_ups[lane] = at + YIELD end
    end
  end
end

local RELOOK = 1000000 -- µs
-- latest_wake_up: the latest µs for a wake-up that a caller with older rules sets. It is RELOOK from now, or as long
-- from now as the newest rules exist, if that is longer. So a user waits too long at most once; and if hosts follow
-- different rules for days, their users are looked at only a few times more.
local function latest_wake_up(now)
  idle_leaders()
  local read, newest = rules_read.version, newest_rules.version
  if not read or not newest or newest == read then return math.huge end
  return now + math.max(RELOOK, now - newest_rules.since)
end

-- why_of: the reason, for waits.lua, of a backlog whose head may go at µs `at`.
local function why_of(backlog, at, now)
  local by = backlog.by
  if backlog.waits_for then return by end
  if at <= now then return 'due' end
  if backlog.elsewhere then return 'f' end
  return by and by:find('^c') and by .. ' ' .. backlog.category or by or '?'
end

local function set_at(user, lane, at)
  redis.call('ZADD', '@wakeups:' .. lane, text(at), user)
  wake_ups_due[lane] = math.min(wake_ups_due[lane] or math.huge, at)
end

local function set_part_wake_ups(user, lanes, at)
  for lane in pairs(lanes) do set_at(user, lane, at) end
end

-- set_wake_up: sets a user's wake-up in a lane, for a head that waits for its rules alone.
local function set_wake_up(user, lane, at, now) set_at(user, lane, math.min(at, latest_wake_up(now))) end

-- set_wake_ups: sets a wake-up in each lane, at the earliest `at` of the user's backlogs there, or at the expiry of a
-- head that expires before; and writes the expected time of each head for RQ's tools. Returns the wake-ups by lane. The
-- caller must call *wake_leaders* at the end.
-- backlogs: array of {category, lane, head, at; waits_for: holds for which the head waits, with a wake-up only for its
-- expiry; elsewhere: the backlog is shut until a job is settled, also for expiries; by: the reason that holds the head
-- back, of history.lua, or nil if it is not known; why: see waits.lua}.
-- turn: the user's #turn, or nil. kept: the lanes whose wake-ups, reasons and expected times stay as they are, or nil.
local function set_wake_ups(user, backlogs, now, turn, kept)
  local wake_ups = {}
  for _, backlog in ipairs(backlogs) do
    local at = math.max(backlog.at, now)
    local waits_for, by = backlog.waits_for, backlog.elsewhere and 'b' or backlog.by
    local is_kept = kept and kept[backlog.lane]
    if not is_kept then waits.decide(user, backlog, why_of(backlog, at, now)) end
    local deadline = not is_kept and (waits_for or at > now) and expect(backlog.head, at, now, by)
    if waits_for then at = math.huge end
    if deadline and not backlog.elsewhere then at = math.max(now, math.min(at, deadline)) end
    if at < (wake_ups[backlog.lane] or math.huge) then wake_ups[backlog.lane] = at end
  end
  local latest = latest_wake_up(now)
  for lane, at in pairs(wake_ups) do wake_ups[lane] = math.min(at, latest) end
  if next(wake_ups, (next(wake_ups))) then yield(wake_ups, now, turn) end
  for lane, at in pairs(wake_ups) do
    if not (kept and kept[lane]) then set_at(user, lane, at) end
  end
  return wake_ups
end

-- set_user_wake_ups: sets the wake-ups of a user who may have waiting jobs. look: of *settle*. index: of the user's
-- policy in the rules, or false if a worker has to write it first. by_devices: whether limits of devices may decide.
local function set_user_wake_ups(look, name, index, by_devices)
  local rules, now = look.rules, look.now
  local found, fields, some_orphans = read_backlogs(name)
  if not (found[1] or next(fields)) then return end
  if not index then return set_part_wake_ups(name, lanes_of(found), now) end -- *pull* tells a worker
  local user, closed = new_user(name, rules.users[index + 1], index), some_orphans and closed_backlogs(name, fields)
  user.backlogs = {}
  if not (found[1] or closed) then redis.call('DEL', backlogs_key(name)) end
  if #found > 2 * MAX_LINES then -- a visit looks at one part of them
    local opens = rules.bypasses and 0 or next_for(user.sent, user.policy, 1)
    return set_part_wake_ups(name, lanes_of(found), math.min(math.max(now, opens), now + LONGEST_PART))
  end
  for i = 1, #found, 2 do
    local category = found[i]
    local head = redis.call('ZRANGE', backlog_key(name, category), '0', '0')[1]
    if head then
      local backlog = new_backlog(rules, user, category, found[i + 1], waits.why_in(fields, category))
      backlog.head = head
      if by_devices then await_devices(look, user, backlog, fields['#lowered']) end
      backlog.at = opens_at(rules, user, backlog, now) or now -- *pull* tells a worker of a missing zone
      if backlog.at > now and is_dropped(backlog) then backlog.at = now end
      backlog.elsewhere = is_closed(closed, category, backlog.bypass)
      if backlog.elsewhere then backlog.at = now + CLOSED end
      user.backlogs[#user.backlogs + 1] = backlog
    end
  end
  set_wake_ups(name, user.backlogs, now, fields['#turn'])
end
