-- admit: for each user whose wake-up is due, takes as many heads of the user's backlogs as the rules admit, in order,
-- and leaves the user's wake-ups at the moment the rules admit the next.
-- Its words: a *backlog* is what waits of one category for one user, its *head* the first of that. A *lane* is one of
-- RQ's queues. A *wake-up* is the time at which a user is looked at again. A *lease* is a worker's right to a job for
-- some time, a *permit* its place among the user's sends. A *route* is a platform and an app of it; if its circuit is
-- open, its project full or this worker has no room for it, it is *held*, and what would go by it *waits for it*.
-- ARGV an ADMIT, see records.py
-- returns an ADMITTED, see records.py
--   looks: how many users were looked at and had nothing that might go. waiting: {job id, user, category, µs left, …},
--   the heads that wait on. asked: {job id, user, data, zone, …}: jobs of plain producers (with RQ alone, without this
--   library) at the heads of backlogs that stay shut until the caller says by `targets` whom they are for; and with a
--   zone, and no data, the head of a backlog that stays shut until the caller has written the zone into @zones, or
--   where there is no such zone has taken push_zone out of the job. leased: LEASED of records.py; one with 0 µs or less
--   until it expires has expired; no permit stands in the user's set for it, nor for one that is to be dropped. chosen:
--   {user, text, …}: users who were not looked at, as the caller does not know what they chose, and that.
--! first_write
--! needs ask backlogs_key decide gather history is_due job_key lower note_due now_us pass_on passes_lowered preferences
--! needs read_circuits read_job read_rules remember reschedule select_user send_head sort_backlogs step_aside text
--! needs waits wake_leaders write_claims write_gathered write_projects
local MAX_HEADS = 25 -- of one user at one look: what is more stays due, so that one backlog does not fill the batch

-- What this call knows, and what it has done so far. All that is included takes it as `look`.
local look = {
  now = now_us(ARGV[ADMIT.clock]),
  room = tonumber(ARGV[ADMIT.max_jobs]), -- how many more may be leased
  lease_us = tonumber(ARGV[ADMIT.lease_us]),
  worker = ARGV[ADMIT.worker],
  claimant = ARGV[ADMIT.claimant],
  rank = {}, -- lane -> its place among the caller's
  rules = read_rules(ARGV[ADMIT.rules]),
  circuits = read_circuits(), -- what is held of routes, by name; or nil
  rooms = ARGV[ADMIT.rooms] ~= '' and cjson.decode(ARGV[ADMIT.rooms]) or nil,
  leased = {}, waits = {}, asked = {}, chosen = {}, -- of the reply
  idle_looks = 0,
  earliest = math.huge, -- of what is set here to fall due for whoever looks first
  emptied = {}, -- the hashes of backlogs to be deleted
  to_lower = 100, -- so many heads may step behind the alerts of their backlogs
  to_expect = 400, -- of so many more RQ is told when they should go
}
look.until_text = text(look.now + look.lease_us)
for i, lane in ipairs(cjson.decode(ARGV[ADMIT.lanes])) do look.rank[lane] = i end

-- end_or_drop: what becomes of a head that is not judged: deleted or cancelled meanwhile, expired, or dropped.
-- Returns false where it is to be judged.
local function end_or_drop(user, i, job, origin)
  local backlog = user.backlogs[i]
  if not job then
    if redis.call('ZREM', backlog.key, backlog.head) == 1 then waits.add(backlog.why, -1) end
    if origin then redis.call('ZREM', '@rq:scheduled:' .. origin, backlog.head) end
    pass_on(user, i)
  elseif job.deadline and job.deadline <= look.now then send_head(look, user, i, job)
  elseif backlog.at > look.now then
    send_head(look, user, i, job, nil, nil, nil, backlog.mutes and 'm' or history.mark_of(backlog.by or '?'))
  else return false end
  return true
end

-- waits_by: the route that a head waits for, as history.lua has it.
local function waits_by(name, hold)
  if hold.state ~= 'paused' then return 'p' .. name end
  return ('h' .. name .. '=' .. hold.who):gsub('%s', '_')
end

-- try: what becomes of the head of backlog i, which is due. Returns whether a permit was spent on it.
local function try(user, i)
  local backlog = user.backlogs[i]
  local job, origin = read_job(backlog.head)
  if end_or_drop(user, i, job, origin) then return false end
  local held = job.not_before and job.not_before > look.now
  local said = held and {verdict = 'wait', at = job.not_before, by = 'r'} or decide(look, user, backlog, job)
  if said.verdict == 'go' and passes_lowered(backlog, job) then
    said = {verdict = 'wait', at = look.now, background = true}
  end
  if said.verdict == 'go' then
    send_head(look, user, i, job, said.needs, said.open, said.shut)
    return true
  elseif said.verdict == 'wait' then
    local at = said.at
    if said.background then at = lower(look, user, backlog, at) end
    backlog.at, backlog.least, backlog.by = at, at, said.by or 'd'
  elseif said.verdict == 'unread' then ask(look, user, backlog)
  elseif said.verdict == 'behind' then
    backlog.elsewhere, backlog.at = true, look.now + look.lease_us -- its worker's settling opens the wake-up
  else -- waits_for_route
    local hold = look.circuits[said.waits_for[1]]
    if job.answered and not said.paused and hold.state ~= 'busy' and hold.state ~= 'full' then
      step_aside(look, backlog, job, said.waits_for)
      pass_on(user, i)
    else -- What is busy, or full, has room soon: the backlog keeps its order.
      backlog.waits_for, backlog.at, backlog.refused = said.waits_for, tonumber(hold['until']), job.refusals
      backlog.by = waits_by(said.waits_for[1], hold)
    end
  end
  return false
end

-- send_due: the heads of a user that may go, as long as there is room. What goes changes when the others may, also by
-- the limits of a device that they share.
local function send_due(user)
  local full, i = #look.leased + MAX_HEADS, 1
  while i <= #user.backlogs and look.room > 0 and #look.leased < full do
    if not is_due(look, user, user.backlogs[i]) then i = i + 1
    elseif try(user, i) then
      user.sends, user.next = user.sends + 1, {}
      for _, backlog in ipairs(user.backlogs) do
        if not backlog.waits_for then backlog.at, backlog.least = nil, nil end -- what is sent opens no route
      end
      if user.several then user.turn = redis.call('HINCRBY', backlogs_key(user.name), '#turn', 1) end
      sort_backlogs(user)
      i = 1
    end
  end
end

local function visit(name, due_lane, since, index)
  local user, asked = select_user(look, name, index), #look.asked
  user.since, user.turns = since, {} -- see decide.lua
  local lanes = user.left
  lanes[due_lane] = true
  for _, backlog in ipairs(user.backlogs) do lanes[backlog.lane] = true end
  send_due(user)
  reschedule(look, user, lanes, since)
  local has_more = #user.backlogs > 0 or user.whole
  if has_more and user.sends == 0 and #look.asked == asked then look.idle_looks = look.idle_looks + 1 end
end

if ARGV[ADMIT.targets] ~= '' then
  for id, targets in pairs(cjson.decode(ARGV[ADMIT.targets])) do
    if redis.call('EXISTS', job_key(id)) == 1 then redis.call('HSET', job_key(id), 'push_targets', targets) end
  end
end
local users, first_lapses = cjson.decode(ARGV[ADMIT.users]), tonumber(ARGV[ADMIT.till])
if first_lapses >= 0 and look.now >= first_lapses then look.room = 0 end
look.seq = #users > 0 and redis.call('INCRBY', '@seq', text(look.room)) - look.room or 0
local names = {}
for i = 1, #users, 4 do names[#names + 1] = users[i] end
preferences.read(look.rules, names, ARGV[ADMIT.chosen])
if look.rules.forgets then
  for _, name in ipairs(names) do remember(name) end
end
for i = 1, #users, 4 do
  local chosen = preferences.stale[users[i]]
  if look.room > 0 and chosen then
    look.chosen[#look.chosen + 1], look.chosen[#look.chosen + 2] = users[i], chosen
  elseif look.room > 0 then
    visit(users[i], users[i + 1], users[i + 2], users[i + 3])
  else -- *pull* pushed the wake-up ahead: it is due still, and the user keeps the place that it gave,
    -- unless another worker has taken all meanwhile
    gather('ZADD XX', '@gates:' .. users[i + 1], text(users[i + 2]), users[i])
  end
end
write_claims(look.claimant, look.lease_us, look.until_text)
write_gathered()
if #look.emptied > 0 then redis.call('DEL', unpack(look.emptied)) end
write_projects()
note_due(look.earliest)
wake_leaders()
waits.write()
redis.call('HINCRBY', '@stats', 'dispatched', #look.leased)
if look.idle_looks > 0 then redis.call('HINCRBY', '@stats', 'looked', look.idle_looks) end
local reply = {}
reply[ADMITTED.now], reply[ADMITTED.looks], reply[ADMITTED.waiting] = look.now, look.idle_looks, look.waits
reply[ADMITTED.asked], reply[ADMITTED.leased], reply[ADMITTED.chosen] = look.asked, look.leased, look.chosen
return reply
