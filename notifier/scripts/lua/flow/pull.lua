-- pull: takes what has arrived or fallen due. What may go now is leased, and the rest waits in its users' backlogs.
-- ARGV a PULL, see records.py, and the caller's lanes, most urgent first
-- A job is always in at least one structure: it leaves its queue, and is leased or stands in its backlog, in one step.
-- The order is that of the queue, whichever worker pulled it.
-- returns a PULLED, see records.py
--   next_us: of the next due in these lanes, or -1. suspended: 1 under `rq suspend`. leased: LEASED of records.py;
--   one with 0 µs or less until it expires has expired; no permit stands in the user's set for it, nor for one that is
--   to be dropped. rooms: {route, how many more, …}, what is left of them. rq_jobs: {job id, permit, …} leased to the
--   caller, which are no notifications of ours. taken: how many jobs came from the queues; queued: how many stay there.
--   shut: the routes whose circuit is open, or false where that was not asked. orphans: LEASED to the caller to be put
--   back, see orphans.lua.
--   idle: how many users were looked at and had nothing that might go.
--   unread: {{job id, data, meta or nil}, …}: jobs whose meta tells nothing. They stay at the head of their queue, and
--   later jobs stay queued behind them, in order, until the caller has read them and called *steer*.
--   chosen, asked, unpublished: what the caller is to write down, before it looks again at once. Whom it concerns
--   stays due, and keeps room. chosen: {user, text, …}, what users chose: what comes of it is to stand in @chosen.
--   asked: {job id, data, zone, …}, heads of plain producers (with RQ alone, without this library), whose backlogs
--   stay shut until the caller says by *steer* whom they are for; or with a zone, and no data, whose backlogs stay
--   shut until it stands in @zones, or where there is no such zone push_zone is taken out of the job. unpublished: 1
--   where @own_rules is missing: until it is there nobody goes.
--   rates: false; or the version of others that hold by now than the caller has looked at, '' if none are published any
--   more: it is to look at them, and nothing was taken.
--! first_write
--! needs DIGEST direct end_cancelled ends enter_backlog gather_for idle_leaders is_another is_text job_key
--! needs lane_shares least_share let_go_of_held note_candidate note_due orders read_circuits
--! needs read_rules remember rules_of same_waiting steering supersede take_over_dead text text_of_counted
--! needs users_rules visit waits wake_leaders write_claims write_gathered write_projects
local time = ARGV[PULL.clock] == '' and redis.call('TIME')
local now = time and time[1] * 1000000 + time[2] or tonumber(ARGV[PULL.clock])
local lanes, reply = {unpack(ARGV, PULL.n + 1)}, {}
for field = 1, PULLED.n do reply[field] = {} end
reply[PULLED.now_us], reply[PULLED.next_us], reply[PULLED.suspended], reply[PULLED.taken] = now, -1, 0, 0
reply[PULLED.unpublished], reply[PULLED.idle], reply[PULLED.queued], reply[PULLED.rates] = 0, 0, 0, false

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
local asked, sets = {'@rq:suspended', '@routes'}, {'@leases', '@later'}
for i, lane in ipairs(lanes) do asked[i + 2], sets[i + 2] = '@rq:queue:' .. lane, '@wakeups:' .. lane end
local some_rare = redis.call('EXISTS', unpack(asked)) > 0
if not some_rare then
  local next_due = math.huge
  for _, key in ipairs(sets) do next_due = math.min(next_due, first(key) or math.huge) end
  if next_due > now then
    if next_due < math.huge then reply[PULLED.next_us] = next_due end
    if ARGV[PULL.leads] == '1' then sleep(next_due < math.huge and next_due) end
    return reply
  end
end
--! pieces
some_rare = some_rare and redis.call('EXISTS', '@rq:suspended', '@routes') > 0

if some_rare and redis.call('EXISTS', '@rq:suspended') == 1 then
  reply[PULLED.suspended] = 1
  return reply
end

-- A caller that stood still would send by rates that were replaced long ago. Those that begin later than anybody can
-- ask for held before Redis's clock was set back.
local version, holds_at = unpack(redis.call('HMGET', '@rates', 'version', 'at'))
local left = (tonumber(holds_at or '') or 0) - now
if (version or '') ~= ARGV[PULL.rates] and (left <= 0 or left > 60000000) then
  reply[PULLED.rates], reply[PULLED.shut] = version or '', false
  return reply
end

local most, lease, worker = tonumber(ARGV[PULL.max_jobs]), tonumber(ARGV[PULL.lease_us]), ARGV[PULL.worker]
local rank = {}
for i, lane in ipairs(lanes) do rank[lane] = i end
ends.read(ARGV[PULL.keep])

local until_text, rq_jobs, since, newly, due = text(now + lease), {}, {}, {}, {}
for i = 1, #lanes do newly[i], due[i] = {}, {} end

-- note_visit: this user is to be visited now, once, whose wake-up is due since µs `at`. among: `newly` or `due`. Who
-- finds no room is due still: only a visit changes a wake-up.
local function note_visit(user, lane, among, at)
  if since[user] then return end
  since[user] = at
  local of_lane = among[rank[lane]]
  of_lane[#of_lane + 1] = user
end

-- look_at: the user is due since µs `at`, and visited by the caller, if it serves the lane; else by whoever does.
local function look_at(user, lane, among, at)
  redis.call('ZADD', '@wakeups:' .. lane, 'LT', text(at), user)
  if rank[lane] then note_visit(user, lane, among, at) else note_due(now, lane) end
end

-- lease_rq_job: a job that is none of ours, or that is to be read, is leased to the caller. One that has waited for its
-- own time stands as from a queue then: else RQ's upkeep would take it for one that RQ alone has scheduled.
local function lease_rq_job(id, from)
  local key, permit = job_key(id), text(redis.call('INCR', '@seq'))
  local origin, status = unpack(redis.call('HMGET', key, 'origin', 'status'))
  redis.call('HSET', key, 'push_permit', permit, 'push_counted', text_of_counted(permit, 1, nil, nil, true))
  if not from and status == 'scheduled' then
    redis.call('ZREM', '@rq:scheduled:' .. origin, id)
    redis.call('HSET', key, 'status', 'queued')
  end
  redis.call('ZADD', '@leases', until_text, id)
  rq_jobs[#rq_jobs + 1] = id
  rq_jobs[#rq_jobs + 1] = permit
end

local rules = read_rules(ARGV[PULL.rules])
local digest_is_full -- the one that a candidate has joined: it is to go
local function join(id, user, category, collapse_id, order)
  local how = rules_of(rules, category).join
  local digest = type(how) == 'number'
  if digest then collapse_id = DIGEST end
  if not how or type(collapse_id) ~= 'string' then return order end
  local old = how ~= 'note' and same_waiting(user, category, collapse_id)
  note_candidate(user, category, collapse_id, id)
  if not old then return order end
  if digest then digest_is_full = gather_for(id, old, how) end
  return supersede(now, user, category, old, id, order)
end

local unread, MAX_READ = {}, 262144 -- bytes; what is larger is read under a lease, so that a death by it is counted

-- tell_unread: whether a job whose meta tells nothing is to be read by the caller first. It is, once; and not where RQ
-- runs it, or has it scheduled: *steer* would say nothing of it. Whoever was told of it, and said nothing for a lease,
-- may have died of it: it is read under a lease then, too.
local function tell_unread(id)
  local job = redis.call('HMGET', job_key(id), 'data', 'meta', 'push_read', 'status')
  local read_at = tonumber(job[3] or now) or 1
  if not job[1] or #job[1] > MAX_READ or not is_text(id) or read_at < now - lease then return false end
  if job[4] == 'started' or job[4] == 'scheduled' then return false end
  if not job[3] then redis.call('HSET', job_key(id), 'push_read', text(now)) end
  unread[#unread + 1] = {id, job[1], job[2]}
  return true
end

-- What this call knows, and what it has done so far. All pieces take it as `look`.
local look = {
  now = now, lease_us = lease, until_text = until_text, worker = worker, claimant = ARGV[PULL.claimant], lanes = lanes,
  rank = rank, -- lane -> its place among the caller's
  due = due,
  rules = rules,
  circuits = nil, -- what is held of routes, by name; or nil
  rooms = ARGV[PULL.rooms] ~= '' and cjson.decode(ARGV[PULL.rooms]) or nil,
  most = most, -- so many may be leased in all
  full = most, -- and so many of these beside the users of whom the caller is to write down more
  leases = {}, -- by the ids of the jobs that went, as their leases are written in the end
  leased = reply[PULLED.leased], orphans = reply[PULLED.orphans],
  asked = reply[PULLED.asked], -- of the reply
  idle = 0, -- users of whom nothing might go
  earliest = math.huge, -- of what is set here to fall due for whoever looks first
  emptied = {}, -- the hashes of backlogs to be deleted
  to_lower = 100, -- so many heads may step behind the alerts of their backlogs
}

-- place: puts a job at its place. Returns false, and nothing was done, where it came from the queue of
-- the lane `from` and is to be read first.
local function place(id, from)
  if look.leases[id] then return true end -- it stood in a queue twice
  digest_is_full = false
  local what, user, lane, is_new = enter_backlog(now, id, join, rules.categories, from)
  is_new = is_new or digest_is_full
  if what == 'entered' then direct.waits[user] = true end
  if what == 'rq_job' then
    if from and tell_unread(id) then return false end
    lease_rq_job(id, from)
  elseif what == 'cancelled' then end_cancelled(now, id) end
  if is_new then look_at(user, lane, newly, now) end
  return true
end

look.place, look.look_at = place, look_at

-- The dead first: they were at the head of their backlogs. Nobody is visited before the last of them has been found.
local room = most - take_over_dead(look)
local lease_ends = tonumber(redis.call('ZRANGE', '@leases', '0', '0', 'WITHSCORES')[2] or -1)
if lease_ends >= 0 and lease_ends <= now then
  waits.write()
  reply[PULLED.next_us], reply[PULLED.rq_jobs], reply[PULLED.shut] = now, rq_jobs, false
  return reply
end

-- look_after: visits a user; or the caller is to write down more of the user, who is due still, and keeps room for as
-- much as one visit may take.
local chosen, MAX_HEADS = reply[PULLED.chosen], 25
local function look_after(user, lane, at)
  if look.rules.forgets then remember(user) end
  local index, text_of_user = users_rules.index_of(user), users_rules.unknown[user]
  if index and not visit(look, user, lane, at, index) then return end
  if text_of_user then chosen[#chosen + 1], chosen[#chosen + 2] = user, text_of_user end
  look.full = look.full - MAX_HEADS
end

users_rules.begin(look.rules)
reply[PULLED.unpublished] = users_rules.is_missing and 1 or 0
direct.begin(look)

local wake_ups, users_due, due_in_all = {}, {}, 0 -- those whose wake-up is due, as many as one call can visit
for i, lane in ipairs(lanes) do
  wake_ups[i] = redis.call('ZRANGEBYSCORE', '@wakeups:' .. lane, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, most)
  users_due[i] = #wake_ups[i] / 2
  due_in_all = due_in_all + users_due[i]
end

-- half_of_room: what falls due does not keep back what arrives.
local function half_of_room() return math.ceil(room / 2) end

local function place_due(id)
  redis.call('ZREM', '@later', id)
  place(id)
  room = room - 1
end
local most_due = half_of_room()
local due_first = redis.call('ZRANGEBYSCORE', '@later', '-inf', text(now), 'LIMIT', 0, most_due)
for _, id in ipairs(due_first) do place_due(id) end
-- Thousands may have fallen due at one moment. What has its place already, such as a retry, does not stay behind them;
-- what has none gets it as it comes, so it comes in order.
if most_due > 0 and #due_first == most_due then
  local due_last = redis.call('ZREVRANGEBYSCORE', '@later', text(now), '-inf', 'LIMIT', 0, half_of_room())
  for _, id in ipairs(due_last) do
    if redis.pcall('HEXISTS', job_key(id), 'push_order') == 1 then place_due(id) end
  end
end

-- stay: the jobs of a queue from the i-th on go back to its head. Which of them are to be read as well is told at once.
local function stay(queue, ids, i)
  for n = #ids, i, -1 do redis.call('LPUSH', queue, ids[n]) end
  for n = i + 1, #ids do
    local job = redis.pcall('HMGET', job_key(ids[n]), 'meta', 'push_order')
    if not job.err and not job[2] and not steering(job[1]) then tell_unread(ids[n]) end
  end
end

local queued, in_queues, taken, some_later = {}, 0, 0, redis.call('EXISTS', '@later') == 1
for i, lane in ipairs(lanes) do
  queued[i] = redis.call('LLEN', '@rq:queue:' .. lane)
  in_queues = in_queues + queued[i]
end

-- Those who are due already keep their room: as much less is taken from the queues, or what comes now would be due next
-- time, and go on so. Half of the room is for what comes. It goes the direct way, where nothing is in force that only a
-- visit knows of, unless many are due.
if in_queues > 0 then
  local left = look.full - due_in_all
  if not some_rare and left >= most * 3 / 4 then direct.room = left end
  room = math.min(room, math.max(half_of_room(), left))
end

-- take_from: so many of a lane's queue, up to the first that has to stay.
local function take_from(lane, n)
  local queue = '@rq:queue:' .. lane
  local ids = redis.call('LPOP', queue, n) or {}
  orders.expected = math.max(#ids, 1)
  direct.read(ids, lane)
  for j, id in ipairs(ids) do
    -- RQ's own scheduler may have queued again what waits for a time of its own.
    local is_later = some_later and redis.call('ZSCORE', '@later', id)
      and not is_another(unpack(redis.call('HMGET', job_key(id), 'created_at', 'push_seen')))
    if not (is_later or direct.take(id, lane) or place(id, lane)) then return stay(queue, ids, j) end
    taken = taken + 1
  end
end

for i, n in ipairs(lane_shares(queued, room)) do
  if n > 0 then take_from(lanes[i], n) end
end
local shut, next_due = {}, math.huge
if some_rare then
  shut, next_due = let_go_of_held(look)
  look.circuits = read_circuits()
end

-- Then those whose wake-up is due, as far as there is room for them beside those who have just come. Of those who were
-- waiting for a route and those whose wake-up is due, who has waited longest is the first.
local come, let_gone = 0, 0
for i = 1, #lanes do come, let_gone = come + #newly[i] + #due[i], let_gone + #due[i] end
for i, n in ipairs(lane_shares(users_due, let_gone > 0 and most or math.max(most - come, math.ceil(most / 2)))) do
  for j = 1, n do note_visit(wake_ups[i][2 * j - 1], lanes[i], due, tonumber(wake_ups[i][2 * j])) end
  orders.expected = math.max(orders.expected, #due[i])
  if let_gone > 0 then table.sort(due[i], function(a, b) return since[a] < since[b] end) end
end

local function attend(user, lane)
  if #look.leased < (users_rules.index_of(user) and look.full or most) then look_after(user, lane, since[user]) end
end

-- In each lane those who wait before those who come. The least share of each lane stands in front: there may be room
-- for no more.
local function attend_all(first, last)
  for i, lane in ipairs(lanes) do
    for j = first, math.min(last, #due[i] + #newly[i]) do
      attend(due[i][j] or newly[i][j - #due[i]], lane)
    end
  end
end
write_gathered() -- before the visits: they may put off what has just begun to wait
local in_front = least_share(most)
attend_all(1, in_front)
attend_all(in_front + 1, math.huge)

write_gathered()
if #look.emptied > 0 then redis.call('DEL', unpack(look.emptied)) end
if #look.leased > 0 then
  write_projects()
  write_claims(look.claimant, lease, until_text)
  redis.call('HINCRBY', '@stats', 'dispatched', #look.leased)
  if lease_ends < 0 then lease_ends = now + lease end
end
if look.idle > 0 then redis.call('HINCRBY', '@stats', 'looked', look.idle) end
next_due = math.min(next_due, look.earliest, lease_ends >= 0 and lease_ends or math.huge)
for i = 2, #sets do next_due = math.min(next_due, first(sets[i]) or math.huge) end
if ARGV[PULL.leads] == '1' then
  idle_leaders()
  sleep(next_due < math.huge and next_due)
end
if look.earliest < math.huge then note_due(look.earliest) end
wake_leaders()
waits.write()
local rooms = {}
for route, left in pairs(look.rooms or {}) do rooms[#rooms + 1], rooms[#rooms + 2] = route, left end
reply[PULLED.next_us], reply[PULLED.rq_jobs] = next_due < math.huge and next_due or -1, rq_jobs
reply[PULLED.taken], reply[PULLED.shut], reply[PULLED.unread] = taken, shut, unread
reply[PULLED.rooms], reply[PULLED.idle], reply[PULLED.queued] = rooms, look.idle, math.max(0, in_queues - taken)
return reply
