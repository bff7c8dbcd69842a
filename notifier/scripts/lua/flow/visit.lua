--! on_demand visit
--! needs ask backlogs_key decide FAR is_due lower pass_on passes_lowered read_job reschedule select_user send_head
--! needs sort_backlogs step_aside waits was_taken
-- Visit: takes as many heads of a user's backlogs as the rules admit, in order, and sets the user's wake-ups to the
-- moments at which the rules admit the next ones.
-- Words: a *backlog* has the waiting jobs of one user and category; its *head* is the first of them. A *lane* is one of
-- RQ's queues. A *wake-up* is the time at which a user is looked at again. A *lease* is a worker's right to a job for
-- some time, a *permit* its place among the user's sends. A *route* is a platform and an app. It is *held* if its
-- circuit is open, its project is full, or this worker has no room for it; jobs that need it *wait for it*.
-- look: of *pull*.
local MAX_HEADS = 25 -- of one user in one visit, so that one backlog does not fill the batch; the user stays due
local MUTED_US = 60000000 -- until the muted rest of a notification is looked at again

-- end_or_drop: handles a head that needs no decision: it was deleted or cancelled, has expired, or is dropped. If a
-- device has received it, it is not dropped for the other devices but steps aside, as the mute may end at any time.
-- Returns false if the head needs a decision.
local function end_or_drop(look, user, i, job, origin)
  local backlog = user.backlogs[i]
  if not job then
    if redis.call('ZREM', backlog.key, backlog.head) == 1 then waits.add(backlog.why, -1) end
    if origin then redis.call('ZREM', '@rq:scheduled:' .. origin, backlog.head) end
    pass_on(user, i)
  elseif job.deadline and job.deadline <= look.now then send_head(look, user, i, job, {})
  elseif backlog.at > look.now and backlog.mutes and was_taken(job.answered) then
    step_aside(look, backlog, job, math.min(backlog.at, look.now + MUTED_US), 'm', {})
    pass_on(user, i)
  elseif backlog.at > look.now then
    send_head(look, user, i, job, {dropped = backlog.mutes and 'm' or backlog.by or '?'})
  else return false end
  return true
end

local function quoted(text)
  return (text:gsub('[%%=,;%s]', function(byte) return ('%%%02X'):format(byte:byte()) end))
end

-- waits_by: the reason of history.lua for a head that waits for this hold.
local function waits_by(name, hold)
  return hold.state ~= 'paused' and 'p' .. name or 'h' .. quoted(name) .. '=' .. quoted(hold.who)
end

-- try: sends or reschedules the head of backlog i, which is due. Returns whether a permit was spent on it.
local function try(look, user, i)
  local backlog = user.backlogs[i]
  local job, origin = read_job(backlog.head)
  if end_or_drop(look, user, i, job, origin) then return false end
  local verdict, said
  if job.not_before and job.not_before > look.now then verdict, said = 'wait', {at = job.not_before, by = 'r'}
  else verdict, said = decide(look, user, backlog, job) end
  if verdict == 'go' and user.lowered and passes_lowered(backlog, job) then
    verdict, said = 'wait', {at = look.now, for_alerts = 0}
  end
  if verdict == 'go' then
    send_head(look, user, i, job, said)
    return true
  elseif verdict == 'wait' then
    local at = said.at
    if said.for_alerts then at = lower(look, user, backlog, job, at, said.for_alerts) end
    backlog.at, backlog.by = at, said.by or 'd'
  elseif verdict == 'unread' then ask(look, backlog)
  elseif verdict == 'behind' then
    backlog.elsewhere, backlog.at = true, look.now + look.lease_us -- its worker sets the wake-up when it settles
  else -- waits_for_route
    local hold = look.circuits[said.waits_for[1]]
    if job.answered and not said.paused and hold.state ~= 'busy' and hold.state ~= 'full' then
      step_aside(look, backlog, job, FAR, 'p' .. said.waits_for[1], said.waits_for)
      pass_on(user, i)
    else -- A busy or full route has room soon: the backlog keeps its order.
      backlog.waits_for, backlog.at, backlog.refused = said.waits_for, tonumber(hold['until']), job.refusals
      backlog.by = waits_by(said.waits_for[1], hold)
    end
  end
  return false
end

-- send_due: sends the heads of a user that may go, while there is room. Each send changes when the others may go, also
-- by the limits of a device that they share.
local function send_due(look, user)
  local backlogs, leased, i = user.backlogs, look.leased, 1
  local full = math.min(look.full, #leased + MAX_HEADS)
  while backlogs[i] and #leased < full do
    if not is_due(look, user, backlogs[i]) then i = i + 1
    elseif try(look, user, i) then
      user.sends = user.sends + 1
      if backlogs[1] then
        for _, backlog in ipairs(backlogs) do
          if not backlog.waits_for then backlog.at = nil end -- a send opens no route
        end
        if user.several then user.turn = redis.call('HINCRBY', backlogs_key(user.name), '#turn', 1) end
        sort_backlogs(user)
      end
      i = 1
    end
  end
end

-- visit: due_lane: the lane of the wake-up, due since µs `since`. index: of the user's policy in the rules. Returns
-- whether the caller of the script must first write something for this user.
local function visit(look, name, due_lane, since, index)
  local user, asked = select_user(look, name, index), #look.asked
  user.since, user.lanes[due_lane] = since, true
  send_due(look, user)
  reschedule(look, user, user.lanes, since)
  local is_asked = #look.asked > asked
  if (user.backlogs[1] or user.whole) and user.sends == 0 and not is_asked then look.idle = look.idle + 1 end
  return is_asked
end
