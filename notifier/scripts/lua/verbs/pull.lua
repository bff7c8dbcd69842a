-- pull: moves what has arrived or fallen due into its users' backlogs, and names the users to be looked at now.
-- ARGV 1 clock  2 most jobs put in backlogs, and most users named  3 lease µs
--      4 '1' if the caller is an idle leader: notes until when it sleeps, see idle_leaders.lua
--      5 the worker's name  6 what candidates find in their backlogs, JSON {category: 'collapse', 'note', after how
--      many a digest goes, or false}, or '' where it is false for all; a category that is not among them is as
--      'default', and where '' is among them, *steer* is to say so in the job's meta before it comes to a backlog
--      7 keep_failed s, see ends.lua  8 the routes by which the caller may send so many more and no more, JSON:
--      {route: how many}; or ''  9 keep_delivered µs  10 the rules of everyone, JSON (see rule_table.lua); or '':
--      nothing goes the direct way  11 the name of the users that have other rules, see direct.lua; or '' where none
--      has  12.. the caller's lanes, most urgent first
-- A job is always in at least one structure: it leaves its queue, and is leased or stands in its backlog, in one step.
-- The order is that of the queue, whichever worker pulled it.
-- returns {now, next, {user, lane, µs, …}, {job id, permit, …}, taken, {route, …} or nil, {{job id, data, meta or
--          nil}, …}, {orphan, …}, until, {leased, …}, {route, how many more, …}, 1 to publish the exceptions}
--   next: µs of the next thing due in these lanes, or -1. users, and since when their wake-ups are due: these stand one
--   lease ahead until *admit* sets them, so that no other worker takes them. jobs: leased to the caller, which are no
--   notifications of ours (RQ's own jobs). taken: how many jobs came from the queues. routes: whose circuit is
--   open. next is 'suspended' under `rq suspend`. orphans: as of *admit*, but leased to the caller to be put back,
--   see orphans.lua.
--   until: from that µs on *admit* is to take nothing, for then a lease may have lapsed; -1 where there is none.
--   leased: what went the direct way, each as of *admit*; behind it what is left of ARGV 8.
--   The last but two: jobs whose meta tells nothing. They stay at the head of their queue, and who
--   stands behind them behind them, until the caller has read them and called *steer*: so they keep their order.
--! include clock keys history counts burst rules idle_leaders candidate ends cancel leaving enter_backlog rule_table
--! include wake_ups claims gather routes collapse behind targets permits limits quiet_hours preferences forgotten
--! include admits_at orphans lease direct first_write
local SUSPECT = 2
local now, most, lease, on_watch = now_us(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
if redis.call('EXISTS', '@rq:suspended') == 1 then
  return {now, 'suspended', {}, {}, 0, {}, {}, {}, -1, {}, {}, 0}
end

local worker, lanes, rank, keep_failed = ARGV[5], {}, {}, ends.read(ARGV[7])
for i = 12, #ARGV do
  lanes[#lanes + 1] = ARGV[i]
  rank[ARGV[i]] = #lanes
end

-- shares: how many of `room` each lane gets, the urgent before the others, but no lane less than a tenth while
-- it has any, so that none starves. `waiting` counts what each lane has.
local function shares(waiting, room)
  local share, left = {}, room
  local floor = math.max(1, math.floor(room / 10))
  for i = 1, #lanes do
    share[i] = math.min(waiting[i], floor)
    left = left - share[i]
  end
  for i = 1, #lanes do
    local more = math.max(0, math.min(waiting[i] - share[i], left))
    share[i], left = share[i] + more, left - more
  end
  return share
end

local until_text, rq_jobs, since, newly, due = text(now + lease), {}, {}, {}, {}
for i = 1, #lanes do newly[i], due[i] = {}, {} end

-- name: the caller looks at this user, whose wake-up is due since µs `at`; it stands one lease ahead until then. among:
-- `newly` or `due`.
local function name(user, lane, among, at)
  redis.call('ZADD', '@gates:' .. lane, until_text, user)
  if since[user] then return end
  since[user] = at
  local of_lane = among[rank[lane]]
  of_lane[#of_lane + 1] = user
end

-- look_at: by the caller, if it serves the lane; else by whoever does. at: since when the user is due, if not since
-- now.
local function look_at(user, lane, among, at)
  if rank[lane] then return name(user, lane, among, at or now) end
  redis.call('ZADD', '@gates:' .. lane, 'LT', text(now), user)
  note_due(now, lane)
end

local function hold(id) -- leases a job that is none of ours to the caller
  local permit = text(redis.call('INCR', '@seq'))
  redis.call('HSET', job_key(id), 'push_permit', permit)
  redis.call('ZADD', '@leases', until_text, id)
  rq_jobs[#rq_jobs + 1] = id
  rq_jobs[#rq_jobs + 1] = permit
end

local full -- whether the digest that a candidate has joined is to go
local on_join, known, join = ARGV[6] ~= '' and cjson.decode(ARGV[6]), nil, nil
if on_join then
  known = on_join[''] and on_join
  function join(id, user, category, collapse_id, order)
    local how, expected, needs_recheck = on_join[category], nil, nil
    if how == nil then how = on_join.default end
    local digest = type(how) == 'number'
    if digest then collapse_id = DIGEST end
    if not how or type(collapse_id) ~= 'string' then return order end
    local old = how ~= 'note' and same_waiting(user, category, collapse_id)
    if old then order, expected, needs_recheck = supersede(now, user, category, old, id, order, keep_failed) end
    if old and digest then full = gather_for(id, old, how) end
    note_candidate(user, category, collapse_id, id)
    return order, expected, needs_recheck
  end
end

local unread, MAX_READ = {}, 262144 -- bytes; what is larger is read under a lease, so that a death by it is counted

-- tell_unread: whether a job whose meta tells nothing is to be read by the caller first. It is, once.
local function tell_unread(id)
  local job = redis.call('HMGET', job_key(id), 'data', 'meta', 'push_read')
  if job[3] or not job[1] or #job[1] > MAX_READ or not is_text(id) then return false end
  unread[#unread + 1] = {id, job[1], job[2]}
  return true
end

local behind = read_behind()
local some_behind = next(behind) ~= nil

-- stands_behind: whether a job of a queue has to let those go first that stand in the queue of the lane before.
local function stands_behind(id)
  local job = redis.pcall('HMGET', job_key(id), 'origin', 'meta', 'push_order')
  local meta = not job.err and job[1] and not job[3] and steering(job[2])
  local before = meta and behind[meta.category]
  if not before or before.lane == job[1] then return false end
  redis.call('RPUSH', behind_key(meta.category), id)
  return true
end

-- place: puts a job at its place. Returns false, and nothing was done, where it came from the queue of
-- the lane `from` and is to be read first. category, opens, by: of *direct.take*, if it said so.
local function place(id, from, category, opens, by)
  if from and some_behind and stands_behind(id) then return true end
  full = false
  local what, user, lane, is_new = enter_backlog(now, id, join, known, from)
  is_new = is_new or full
  if what == 'entered' then direct.waits[user] = true end
  if what == 'rq_job' then
    if from and tell_unread(id) then return false end
    hold(id)
  elseif what == 'cancelled' then
    end_cancelled(now, id, redis.call('HMGET', job_key(id), unpack(CANCEL_READS)), keep_failed, tonumber(ARGV[9]))
  end
  if is_new and category and what == 'entered' then direct.wait(user, category, lane, id, opens, by)
  elseif is_new then look_at(user, lane, newly) end
  return true
end

-- What falls due does not keep back what arrives: it takes half of the room that is left.
local room = most
local function share_of_room() return math.ceil(room / 2) end

-- put_back: what was in flight with a dead worker, and of which nothing was sent, goes back at once.
local function put_back(id, key, job)
  redis.call('ZREM', '@leases', id)
  if job.permit then redis.call('ZREM', '@rq:wip:' .. job.origin, id .. ':' .. job.permit) end
  if job.status == 'queued' and job.order then -- somebody enqueued it again while it was in flight
    ends.tell(now, id, 'superseded')
    forget(key)
    tally(nil, 'superseded')
    if job.again then redis.call('LPUSH', '@rq:queue:' .. job.origin, id) end
    return
  end
  redis.call('HDEL', key, 'push_permit')
  place(id)
end

-- take_over: what a dead worker had in flight is in flight with the caller now, as an orphan, see orphans.lua.
local orphans = {}
local function take_over(id)
  local key = job_key(id)
  local read = redis.call('HMGET', key, 'origin', 'push_permit', 'push_crashes', 'push_begun', 'status', 'push_order',
    'push_again', 'meta', 'push_orphan', 'push_targets', 'push_answered', 'data', 'push_attempts', 'push_accepted',
    'push_held', 'push_counted')
  local job = {origin = read[1], permit = read[2], status = read[5], order = read[6], again = read[7]}
  if not job.origin then return redis.call('ZREM', '@leases', id) end
  -- A worker that dies takes along all that it held. One that died with them twice is a suspect, begun alone by
  -- whoever holds it next: from then on only what had been begun is to blame.
  local crashes, is_orphan = number(read[3]) or 0, read[9]
  if not is_orphan and (crashes < SUSPECT or read[4] == job.permit) then
    crashes = crashes + 1
    redis.call('HSET', key, 'push_crashes', crashes)
  end
  if read[14] and not read[15] then history.note(id, read[14], nil, now - lease, 'f') end
  local counted = job.permit and counted_of(job.permit, read[16])
  -- Where nothing was counted nothing was sent: it is no orphan.
  local meta = counted and not counted.nothing and is_text(id) and steering(read[8])
  if not meta then return put_back(id, key, job) end
  local ends = tonumber(redis.call('ZSCORE', '@leases', id))
  orphan(id, meta.user, meta.category)
  stay_in_flight(id, job.permit, counted, meta.user, meta.category, read[10], read[11], ends, now + lease, until_text)
  orphans[#orphans + 1] = {id, job.permit, meta.user, meta.category, read[12] or '', false, number(read[13]) or 0,
    crashes,
    read[11], false}
end

-- The dead first: they were at the head of their backlogs. Nobody is named before the last of them has been found.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', '@leases', '-inf', text(now), 'LIMIT', 0, most)) do
  take_over(id)
  room = room - 1
end
write_lasting()
local lease_ends = tonumber(redis.call('ZRANGE', '@leases', '0', '0', 'WITHSCORES')[2] or -1)
if lease_ends >= 0 and lease_ends <= now then
  for user in pairs(since) do -- *place* has named them
    for _, lane in ipairs(lanes) do redis.call('ZADD', '@gates:' .. lane, 'XX', 'LT', text(now), user) end
  end
  return {now, now, {}, rq_jobs, 0, false, {}, orphans, -1, {}, {}, 0}
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', '@later', '-inf', text(now), 'LIMIT', 0, share_of_room())) do
  redis.call('ZREM', '@later', id)
  place(id)
  room = room - 1
end

-- stay: the jobs of a queue from the i-th on go back to its head. Which of them are to be read as well is told at once.
local function stay(queue, ids, i)
  for n = #ids, i, -1 do redis.call('LPUSH', queue, ids[n]) end
  for n = i + 1, #ids do
    local job = redis.pcall('HMGET', job_key(ids[n]), 'meta', 'push_order')
    if not job.err and not job[2] and not steering(job[1]) then tell_unread(ids[n]) end
  end
end

local waiting, taken, some_later = {}, 0, redis.call('EXISTS', '@later') == 1
for i, lane in ipairs(lanes) do waiting[i] = redis.call('LLEN', '@rq:queue:' .. lane) end

-- open_direct: lets what comes now go the direct way, where nothing is in force that only *admit* knows of. Those who
-- are due already keep their room beside it; where they are many, all go through their backlogs. Returns whether the
-- caller is to publish who has other rules.
local function open_direct()
  local some_wait, left = false, most
  for i, lane in ipairs(lanes) do
    some_wait = some_wait or waiting[i] > 0
    left = left - redis.call('ZCOUNT', '@gates:' .. lane, '-inf', text(now))
  end
  if not some_wait or ARGV[10] == '' or some_behind or left < most * 3 / 4 then return false end
  if redis.call('EXISTS', '@routes', '@moves') > 0 or uses_local_time() then return false end
  if ARGV[11] ~= '' then
    direct.exceptions = EXCEPTIONS .. ARGV[11]
    if redis.call('EXISTS', direct.exceptions) == 0 then return true end
  end
  direct.rules, direct.worker = read_rules(ARGV[10]), worker
  direct.now, direct.lease_us, direct.until_text = now, lease, until_text
  direct.rooms = ARGV[8] ~= '' and cjson.decode(ARGV[8]) or {}
  direct.room = direct.rules.clock and 0 or left
  return false
end
local unpublished = open_direct()

-- take_from: as many of a lane's queue.
local function take_from(lane, n)
  local queue = '@rq:queue:' .. lane
  local ids = redis.call('LPOP', queue, n) or {}
  orders.expected = math.max(#ids, 1)
  for j, id in ipairs(ids) do
    local goes, category, opens, by = direct.take(id, lane)
    if not goes then
      -- RQ's own scheduler may have queued again what waits for a time of its own.
      local is_later = some_later and redis.call('ZSCORE', '@later', id)
        and not is_another(unpack(redis.call('HMGET', job_key(id), 'created_at', 'push_seen')))
      if not is_later and not place(id, lane, category, opens, by) then
        return stay(queue, ids, j)
      end
    end
    taken = taken + 1
    for _, before in pairs(behind) do
      if before.lane == lane then
        before.left = before.left - 1
        if before.tail == id then before.left, before.tail = 0, '' end
      end
    end
  end
end

-- is_over: whether none stands in the queue of the lane before any more of those that stood there when the lane
-- changed.
local function is_over(before)
  if redis.call('LLEN', '@rq:queue:' .. before.lane) == 0 then return true end
  if before.left > 0 or before.tail == '' then return before.left <= 0 end
  -- It may have been deleted, or cancelled.
  local tail = redis.call('HMGET', job_key(before.tail), 'status', 'push_order')
  return tail[1] ~= 'queued' or tail[2] ~= false
end

-- let_follow: those that had to wait come to their backlogs, as far as there is room.
local function let_follow(category, before)
  if not is_over(before) then return note_behind(category, before.lane, before.left, before.tail) end
  behind[category] = nil
  local key = behind_key(category)
  for _, id in ipairs(redis.call('LPOP', key, most) or {}) do place(id) end
  if redis.call('EXISTS', key) == 1 then note_behind(category, before.lane, 0, '')
  else redis.call('HDEL', '@behind', category) end
end

local others = {} -- the lanes that the caller does not serve, of which it takes all the same
for _, before in pairs(behind) do
  if not rank[before.lane] then others[before.lane] = true end
end
for lane in pairs(others) do
  local had = taken
  take_from(lane, share_of_room())
  room = room - (taken - had)
end
for i, n in ipairs(shares(waiting, room)) do
  if n > 0 then take_from(lanes[i], n) end
end
local changed = {}
for category in pairs(behind) do changed[#changed + 1] = category end
for _, category in ipairs(changed) do let_follow(category, behind[category]) end

-- let_go: what was parked for `of` is looked at now; the rest of a notification goes back to its place.
local function let_go(of, member, at)
  local id, lane, user = member:match('^j(.+)$'), member:match('^u(%S+) (.+)$')
  if id then
    local meta = steering(redis.call('HGET', job_key(id), 'meta'))
    if meta then redis.call('ZREM', rests_key(backlog_key(meta.user, meta.category), of), id) end
    if redis.call('ZREM', '@later', id) == 1 then place(id) end
    return
  end
  for _, standing in ipairs(redis.call('HVALS', backlogs_key(user))) do
    if standing == lane then return look_at(user, lane, due, at) end
  end
end

-- how_many: of what is parked may go now.
local function how_many(hold)
  if hold.state == 'closing' then return most end
  if hold.state == 'busy' then return hold.free or 0 end
  if hold.state == 'full' then return tonumber(hold['until']) <= now and math.min(most, tonumber(hold.room)) or 0 end
  return probe_at(hold, worker) <= now and 1 or 0
end

local holds, names = read_circuits()

-- share_rooms: as many of what waits in each lane for room on a route as this worker has room for.
local function share_rooms()
  local rooms, waits = ARGV[8] ~= '' and cjson.decode(ARGV[8]) or {}, {}
  for _, of in ipairs(names) do
    local hold = holds[of]
    if hold.state == 'busy' and rank[hold.lane] then
      waits[hold.route] = waits[hold.route] or {}
      waits[hold.route][rank[hold.lane]] = of
    end
  end
  for route, of_lane in pairs(waits) do
    local parked, room = {}, math.min(most, rooms[route] or most)
    for i = 1, #lanes do parked[i] = of_lane[i] and redis.call('ZCARD', parked_key(of_lane[i])) or 0 end
    for i, n in ipairs(room > 0 and shares(parked, room) or {}) do
      if of_lane[i] then holds[of_lane[i]].free = n end
    end
  end
end

if holds then share_rooms() end
local shut, next_due = {}, nil
for _, of in ipairs(names) do
  local hold = holds[of]
  local n = how_many(hold)
  if n > 0 then
    if hold.state == 'open' then
      local again = text(now + CLAIM)
      change_hold(of, hold, 'probe', '1', 'until', again, 'others', again)
    end
    local parked = redis.call('ZRANGE', parked_key(of), 0, n - 1, 'WITHSCORES')
    if #parked > 0 then redis.call('ZREMRANGEBYRANK', parked_key(of), 0, n - 1) end
    for i = 1, #parked, 2 do let_go(of, parked[i], hold.state == 'busy' and tonumber(parked[i + 1]) or now) end
  end
  local left = redis.call('ZCARD', parked_key(of))
  if hold.state == 'open' then shut[#shut + 1] = of
  elseif left == 0 and (n > 0 or hold.state == 'busy') then drop_hold(of) end
  -- What is busy is looked at by whoever gets room, when a send has ended.
  if hold.state ~= 'busy' and (left > 0 or hold.state == 'open' and hold.probe ~= '1') then
    local at = hold.state == 'closing' and now or probe_at(hold, worker)
    next_due = math.min(next_due or math.huge, at)
  end
end

-- Then those whose wake-up is due, as far as there is room for them beside those who have just come. Of those who were
-- parked and those whose wake-up is due, who has waited longest is the first.
local come, let_gone, wake_ups = 0, 0, {}
for i, lane in ipairs(lanes) do
  come, let_gone = come + #newly[i] + #due[i], let_gone + #due[i]
  wake_ups[i] = redis.call('ZRANGEBYSCORE', '@gates:' .. lane, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, most)
  waiting[i] = #wake_ups[i] / 2
end
for i, n in ipairs(shares(waiting, let_gone > 0 and most or math.max(most - come, math.ceil(most / 2)))) do
  for j = 1, n do name(wake_ups[i][2 * j - 1], lanes[i], due, tonumber(wake_ups[i][2 * j])) end
  if let_gone > 0 then table.sort(due[i], function(a, b) return since[a] < since[b] end) end
end

-- In each lane those who wait before those who come. A tenth of each lane stands in front: *admit* may find room for
-- no more, and none is to starve.
local users, tenth = {}, math.max(1, math.floor(most / 10))
local function put(first, last)
  for i, lane in ipairs(lanes) do
    for j = first, math.min(last, #due[i] + #newly[i]) do
      local user = due[i][j] or newly[i][j - #due[i]]
      local n = #users
      users[n + 1], users[n + 2], users[n + 3] = user, lane, since[user]
    end
  end
end
put(1, tenth)
put(tenth + 1, math.huge)

local function first(key)
  local entry = redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')
  local at = tonumber(entry[2])
  if at and (not next_due or at < next_due) then next_due = at end
end
first('@later')
if lease_ends < 0 and #direct.leased > 0 then lease_ends = now + lease end
if lease_ends >= 0 then next_due = math.min(next_due or math.huge, lease_ends) end
for _, lane in ipairs(lanes) do first('@gates:' .. lane) end
if some_behind and redis.call('EXISTS', '@behind') == 1 then next_due = now end
if on_watch then
  local own, leaders = lanes_of_leader(lanes), idle_leaders()
  redis.call('HSET', '@leaders', own, text(next_due or now + 3600000000))
  for i = 1, #leaders, 2 do
    local gone = leaders[i] ~= own and redis.call('EXISTS', '@leader:' .. leaders[i]) == 0
    if gone then redis.call('HDEL', '@leaders', leaders[i]) end
  end
end
direct.write()
wake_leaders()
local rooms = {}
for route, left in pairs(direct.rooms) do rooms[#rooms + 1], rooms[#rooms + 2] = route, left end
return {now, next_due or -1, users, rq_jobs, taken, shut, unread, orphans, lease_ends, direct.leased, rooms,
  unpublished and 1 or 0}
