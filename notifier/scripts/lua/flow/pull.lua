-- pull: moves what has arrived or fallen due into its users' backlogs, and names the users to be looked at now.
-- ARGV a PULL, see records.py, and the caller's lanes, most urgent first
-- A job is always in at least one structure: it leaves its queue, and is leased or stands in its backlog, in one step.
-- The order is that of the queue, whichever worker pulled it.
-- returns a PULLED, see records.py
--   next: µs of the next thing due in these lanes, or -1; 'suspended' under `rq suspend`. users: {user, lane, since
--   when the wake-up is due, µs, …}: these stand one lease ahead until *admit* sets them, so that no other worker takes
--   them. rq_jobs: {job id, permit, …} leased to the caller, which are no notifications of ours. taken: how many jobs
--   came from the queues. shut: the routes whose circuit is open, or false where that was not asked. orphans: as of
--   *admit*, but leased to the caller to be put back, see orphans.lua. leased: what went the direct way, each as of
--   *admit*; rooms: {route, how many more, …}, what is left of them. unpublished: 1 to publish who has
--   rules of their own.
--   till: from that µs on *admit* is to take nothing, for then a lease may have lapsed; -1 where there is none.
--   unread: {{job id, data, meta or nil}, …}: jobs whose meta tells nothing. They stay at the head of their queue, and
--   later jobs stay queued behind them, in order, until the caller has read them and called *steer*.
--! first_write
--! needs CANCEL_READS DIGEST direct end_cancelled ends enter_backlog OWN_RULES gather_for idle_leaders is_another
--! needs is_text job_key let_follow let_go_of_held note_candidate note_due orders pass_behind read_behind read_rules
--! needs same_waiting stands_behind steering supersede take_over text uses_local_time waits wake_leaders write_lasting
local time = ARGV[PULL.clock] == '' and redis.call('TIME')
local now = time and time[1] * 1000000 + time[2] or tonumber(ARGV[PULL.clock])
local lanes, reply = {unpack(ARGV, PULL.n + 1)}, {}
for field = 1, PULLED.n do reply[field] = {} end
reply[PULLED.now], reply[PULLED.next], reply[PULLED.taken] = now, -1, 0
reply[PULLED.till], reply[PULLED.unpublished] = -1, 0

-- first: the µs at which the first of a set is due, or nil.
local function first(key) return tonumber(redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')[2]) end

-- sleep: an idle leader notes until when it sleeps; those that have gone are forgotten.
local function sleep(till)
  local sorted = {unpack(lanes)}
  table.sort(sorted)
  local own, leaders = table.concat(sorted, ','), redis.call('HKEYS', '@leaders')
  redis.call('HSET', '@leaders', own, string.format('%.0f', till or now + 3600000000))
  for _, name in ipairs(leaders) do
    local gone = name ~= own and name:sub(1, 1) ~= '#' and redis.call('EXISTS', '@leader:' .. name) == 0
    if gone then redis.call('HDEL', '@leaders', name) end
  end
end

-- Most looks find nothing: it is seen before any piece is made.
local asked, sets = {'@rq:suspended', '@routes', '@behind'}, {'@leases', '@later'}
for i, lane in ipairs(lanes) do asked[i + 3], sets[i + 2] = '@rq:queue:' .. lane, '@gates:' .. lane end
local some_rare = redis.call('EXISTS', unpack(asked)) > 0
if not some_rare then
  local next_due = math.huge
  for i, key in ipairs(sets) do
    local at = first(key) or math.huge
    if i == 1 and at < math.huge then reply[PULLED.till] = at end
    next_due = math.min(next_due, at)
  end
  if next_due > now then
    if next_due < math.huge then reply[PULLED.next] = next_due end
    if ARGV[PULL.leads] == '1' then sleep(next_due < math.huge and next_due) end
    return reply
  end
end
--! pieces
some_rare = some_rare and redis.call('EXISTS', '@rq:suspended', '@routes', '@behind') > 0
if some_rare and redis.call('EXISTS', '@rq:suspended') == 1 then
  reply[PULLED.next] = 'suspended'
  return reply
end

local most, lease, worker = tonumber(ARGV[PULL.max_jobs]), tonumber(ARGV[PULL.lease_us]), ARGV[PULL.worker]
local rank, keep_failed, keep_delivered = {}, ends.read(ARGV[PULL.keep]), tonumber(ARGV[PULL.keep_delivered_us])
for i, lane in ipairs(lanes) do rank[lane] = i end

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

local function put_ahead(user, lane) redis.call('ZADD', '@gates:' .. lane, until_text, user) end

-- name: this user is to be looked at now, whose wake-up is due since µs `at`. among: `newly` or `due`. Returns false
-- where the user is named already.
local function name(user, lane, among, at)
  if since[user] then return false end
  since[user] = at
  local of_lane = among[rank[lane]]
  of_lane[#of_lane + 1] = user
  return true
end

-- look_at: by the caller, if it serves the lane, and the wake-up stands one lease ahead until then; else by whoever
-- does. at: since when the user is due, if not since now.
local function look_at(user, lane, among, at)
  if rank[lane] then
    put_ahead(user, lane)
    return name(user, lane, among, at or now)
  end
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
local on_join, known, join = ARGV[PULL.on_join] ~= '' and cjson.decode(ARGV[PULL.on_join]), nil, nil
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

local behind = some_rare and read_behind() or {}
local some_behind = next(behind) ~= nil

-- place: puts a job at its place. Returns false, and nothing was done, where it came from the queue of
-- the lane `from` and is to be read first.
local function place(id, from)
  if direct.sent[id] then return true end -- it stood in a queue twice
  if from and some_behind and stands_behind(behind, id) then return true end
  full = false
  local what, user, lane, is_new = enter_backlog(now, id, join, known, from)
  is_new = is_new or full
  if what == 'entered' then direct.waits[user] = true end
  if what == 'rq_job' then
    if from and tell_unread(id) then return false end
    hold(id)
  elseif what == 'cancelled' then
    end_cancelled(now, id, redis.call('HMGET', job_key(id), unpack(CANCEL_READS)), keep_failed, keep_delivered)
  end
  if is_new then look_at(user, lane, newly) end
  return true
end

-- What falls due does not keep back what arrives: it takes half of the room that is left.
local room = most
local function share_of_room() return math.ceil(room / 2) end

local function read_rooms() return ARGV[PULL.rooms] ~= '' and cjson.decode(ARGV[PULL.rooms]) or {} end

-- What the pieces of this call know of it.
local look = {now = now, lease_us = lease, until_text = until_text, worker = worker, most = most, lanes = lanes,
  rank = rank, due = due, place = place, look_at = look_at, shares = shares, rooms = read_rooms,
  orphans = reply[PULLED.orphans]}

-- The dead first: they were at the head of their backlogs. Nobody is named before the last of them has been found.
local lapsed = redis.call('ZRANGEBYSCORE', '@leases', '-inf', text(now), 'LIMIT', 0, most)
for _, id in ipairs(lapsed) do
  take_over(look, id)
  room = room - 1
end
if #lapsed > 0 then write_lasting() end
local lease_ends = tonumber(redis.call('ZRANGE', '@leases', '0', '0', 'WITHSCORES')[2] or -1)
if lease_ends >= 0 and lease_ends <= now then
  for user in pairs(since) do -- *place* has named them
    for _, lane in ipairs(lanes) do redis.call('ZADD', '@gates:' .. lane, 'XX', 'LT', text(now), user) end
  end
  waits.write()
  reply[PULLED.next], reply[PULLED.rq_jobs], reply[PULLED.shut] = now, rq_jobs, false
  return reply
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

-- open_direct: lets what comes now, or is due, go the direct way, where nothing is in force that only *admit* knows of.
-- Those who are due already keep their room beside what comes; where they are many, that goes through its backlogs.
-- Returns whether the caller is to publish who has other rules.
local function open_direct()
  local some_wait, left = false, most
  for i, lane in ipairs(lanes) do
    some_wait = some_wait or waiting[i] > 0
    left = left - redis.call('ZCOUNT', '@gates:' .. lane, '-inf', text(now))
  end
  if not some_wait and left == most or ARGV[PULL.rules] == '' then return false end
  if some_rare and redis.call('EXISTS', '@routes') == 1 or uses_local_time() then return false end
  if ARGV[PULL.own_rules] ~= '' then
    direct.own_rules = OWN_RULES .. ARGV[PULL.own_rules]
    if redis.call('EXISTS', direct.own_rules) == 0 then return true end
  end
  direct.rules, direct.worker, direct.claimant = read_rules(ARGV[PULL.rules]), worker, ARGV[PULL.claimant]
  direct.now, direct.lease_us, direct.until_text = now, lease, until_text
  direct.rooms = read_rooms()
  direct.is_open, direct.most = not direct.rules.clock, most
  if direct.is_open and not some_behind and left >= most * 3 / 4 then direct.room = left end
  return false
end
local unpublished = open_direct()

-- take_from: as many of a lane's queue.
local function take_from(lane, n)
  local queue = '@rq:queue:' .. lane
  local ids = redis.call('LPOP', queue, n) or {}
  orders.expected = math.max(#ids, 1)
  direct.read(ids, lane)
  for j, id in ipairs(ids) do
    if not direct.take(id, lane) then
      -- RQ's own scheduler may have queued again what waits for a time of its own.
      local is_later = some_later and redis.call('ZSCORE', '@later', id)
        and not is_another(unpack(redis.call('HMGET', job_key(id), 'created_at', 'push_seen')))
      if not is_later and not place(id, lane) then return stay(queue, ids, j) end
    end
    taken = taken + 1
    if some_behind then pass_behind(behind, lane, id) end
  end
end

local others = {} -- the lanes that the caller does not serve, of which it takes all the same
for _, before in pairs(behind) do others[before.lane] = not rank[before.lane] or nil end
for lane in pairs(others) do
  local had = taken
  take_from(lane, share_of_room())
  room = room - (taken - had)
end
for i, n in ipairs(shares(waiting, room)) do
  if n > 0 then take_from(lanes[i], n) end
end
for category, before in pairs(behind) do let_follow(look, category, before) end
local shut, next_due = {}, math.huge
if some_rare then shut, next_due = let_go_of_held(look) end

-- Then those whose wake-up is due, as far as there is room for them beside those who have just come. Of those who were
-- waiting for a route and those whose wake-up is due, who has waited longest is the first.
local come, let_gone, wake_ups = 0, 0, {}
for i, lane in ipairs(lanes) do
  come, let_gone = come + #newly[i] + #due[i], let_gone + #due[i]
  wake_ups[i] = redis.call('ZRANGEBYSCORE', '@gates:' .. lane, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, most)
  waiting[i] = #wake_ups[i] / 2
end
for i, n in ipairs(shares(waiting, let_gone > 0 and most or math.max(most - come, math.ceil(most / 2)))) do
  for j = 1, n do
    local user = wake_ups[i][2 * j - 1]
    if not name(user, lanes[i], due, tonumber(wake_ups[i][2 * j])) then put_ahead(user, lanes[i]) end
  end
  orders.expected = math.max(orders.expected, #due[i])
  if let_gone > 0 then table.sort(due[i], function(a, b) return since[a] < since[b] end) end
end

-- In each lane those who wait before those who come. A tenth of each lane stands in front: there may be room for no
-- more, and none is to starve.
local users, tenth = {}, math.max(1, math.floor(most / 10))
local function put(first, last)
  for i, lane in ipairs(lanes) do
    for j = first, math.min(last, #due[i] + #newly[i]) do
      local is_due, n = j <= #due[i], #users
      local user = is_due and due[i][j] or newly[i][j - #due[i]]
      if not (is_due and direct.visit(user, lane, since[user], n / 3)) then
        if is_due then put_ahead(user, lane) end
        users[n + 1], users[n + 2], users[n + 3] = user, lane, since[user]
      end
    end
  end
end
put(1, tenth)
put(tenth + 1, math.huge)

direct.write()
if lease_ends < 0 and #direct.leased > 0 then lease_ends = now + lease end
next_due = math.min(next_due, lease_ends >= 0 and lease_ends or math.huge)
for i = 2, #sets do next_due = math.min(next_due, first(sets[i]) or math.huge) end
if some_behind and redis.call('EXISTS', '@behind') == 1 then next_due = now end
if next_due == math.huge then next_due = nil end
if ARGV[PULL.leads] == '1' then
  idle_leaders()
  sleep(next_due)
end
wake_leaders()
waits.write()
local rooms = {}
for route, left in pairs(direct.rooms) do rooms[#rooms + 1], rooms[#rooms + 2] = route, left end
reply[PULLED.next], reply[PULLED.users], reply[PULLED.rq_jobs] = next_due or -1, users, rq_jobs
reply[PULLED.taken], reply[PULLED.shut], reply[PULLED.unread], reply[PULLED.till] = taken, shut, unread, lease_ends
reply[PULLED.leased], reply[PULLED.rooms], reply[PULLED.unpublished] = direct.leased, rooms, unpublished and 1 or 0
return reply
