-- pull: takes new and due jobs. It leases the jobs that may go now to the caller; the others wait in users' backlogs.
-- ARGV a PULL, see records.py, and the caller's lanes, most urgent first
-- A job is always in at least one structure: in one step it leaves its queue, and gets a lease or a place in its
-- backlog. Jobs keep the order of their queue, whichever workers pull them.
-- returns a PULLED, see records.py
--   next_us: when the next job or wake-up in these lanes is due, or -1. suspended: 1 under `rq suspend`. leased: LEASED
--   of records.py. A job with 0 µs or less left has expired; its permit stands in no set, nor does that of a job to be
--   dropped. rooms: {route, how many more, …}, what is left of the caller's. rq_jobs: {job id, permit, …} leased to the
--   caller: no notifications, or jobs that it must read. taken: how many jobs came from the queues; queued: how many
--   stay there. shut: the routes whose circuit is open, or false if the call did not look. orphans: LEASED of dead
--   workers' jobs, which the caller puts back, see orphans.lua. idle: how many visited users had nothing that might go.
--   unread: {{job id, data, meta or nil}, …}: jobs whose meta names no user and configured category. They stay at the
--   head of their queue, and later jobs behind them, in order, until the caller has read them and called *steer*.
--   chosen, asked, unpublished: what the caller must write to Redis before it pulls again, which it does at once. The
--   users concerned stay due, and room is kept for them. chosen: {user, text, …}: preferences without an entry in
--   @chosen. asked: {job id, data, zone, …}: heads of backlogs. A head without a zone is of a plain producer (with RQ
--   alone, without this library): its backlog is shut until *steer* writes its targets. The backlog of a head with a
--   zone is shut until @zones has it or, if there is no such zone, the caller deletes the job's push_zone. unpublished:
--   1 if @own_rules is missing: no user's jobs go until it is written.
--   rates: false; or the version of the published rates ('' without any) if the caller has read other ones: it must
--   read these first, and the call took nothing.
--! first_write
--! needs DIGEST direct end_cancelled ends enter_backlog gather_for idle_leaders is_another is_text job_key
--! needs lane_shares least_share let_go_of_held look_by note_candidate note_due orders
--! needs read_circuits read_rules remember rules_of same_waiting steering supersede take_over_dead text text_of_counted
--! needs users_rules visit waits wake_leaders write_claims write_gathered write_projects
local time = ARGV[PULL.clock] == '' and redis.call('TIME')
local now = time and time[1] * 1000000 + time[2] or tonumber(ARGV[PULL.clock])
local lanes, reply = {unpack(ARGV, PULL.n + 1)}, {}
for field = 1, PULLED.n do reply[field] = {} end
reply[PULLED.now_us], reply[PULLED.next_us], reply[PULLED.suspended], reply[PULLED.taken] = now, -1, 0, 0
reply[PULLED.unpublished], reply[PULLED.idle], reply[PULLED.queued], reply[PULLED.rates] = 0, 0, 0, false

-- first: when the first entry of a sorted set is due (µs), or nil.
local function first(key) return tonumber(redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')[2]) end

-- sleep: notes until when the idle leader sleeps, and forgets leaders that have gone.
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

-- Most calls find nothing to do. They end here, before the pieces' functions are created.
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

-- A caller that was stopped for long may have read rates that were replaced since. A start time further ahead than
-- anyone may ask for means that Redis's clock was set back: these rates hold already.
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

-- note_visit: lists a user, due since µs `at`, for one visit in this call. among: `newly` or `due`. A user who finds no
-- room stays due: only a visit changes a wake-up.
local function note_visit(user, lane, among, at)
  if since[user] then return end
  since[user] = at
  local of_lane = among[rank[lane]]
  of_lane[#of_lane + 1] = user
end

-- look_at: makes a user due since µs `at`. The caller visits the user if it serves the lane; else another worker does.
local function look_at(user, lane, among, at)
  if rank[lane] then
    redis.call('ZADD', '@wakeups:' .. lane, 'LT', text(at), user)
    note_visit(user, lane, among, at)
  else look_by(user, lane, at) end
end

-- lease_rq_job: leases a job to the caller that is no notification, or that the caller must read. A job that comes from
-- `later` counts as queued from now on: else RQ's maintenance would take it for a job that RQ alone has scheduled.
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
local digest_is_full -- whether *join* has completed a digest: its user is due then
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

local unread, MAX_READ = {}, 262144 -- bytes; a larger job is read under a lease, so that a death by it is counted

-- tell_unread: gives the caller a job to read before it is leased. Returns false if the job is to be leased without
-- that: a worker has read it already; or RQ runs it or has scheduled it, so that *steer* would ignore it; or a worker
-- got it more than a lease ago and did not call *steer*: it may have died of the job.
local function tell_unread(id)
  local job = redis.call('HMGET', job_key(id), 'data', 'meta', 'push_read', 'status')
  local read_at = tonumber(job[3] or now) or 1
  if not job[1] or #job[1] > MAX_READ or not is_text(id) or read_at < now - lease then return false end
  if job[4] == 'started' or job[4] == 'scheduled' then return false end
  if not job[3] then redis.call('HSET', job_key(id), 'push_read', text(now)) end
  unread[#unread + 1] = {id, job[1], job[2]}
  return true
end

-- What this call knows, and what it has done so far. The pieces get this table as `look`.
local look = {
  now = now, lease_us = lease, until_text = until_text, worker = worker, claimant = ARGV[PULL.claimant], lanes = lanes,
  rank = rank, -- lane -> its place among the caller's
  due = due,
  rules = rules,
  circuits = nil, -- the holds by name, see routes.lua, or nil
  rooms = ARGV[PULL.rooms] ~= '' and cjson.decode(ARGV[PULL.rooms]) or nil,
  most = most, -- how many jobs may be leased
  full = most, -- `most`, less the room kept for users for whom the caller must write something first
  leases = {}, -- {id: true} of the leased jobs, whose leases are written at the end
  leased = reply[PULLED.leased], orphans = reply[PULLED.orphans],
  asked = reply[PULLED.asked], -- of the reply
  idle = 0, -- how many visited users had nothing that might go
  earliest = math.huge, -- the earliest µs that this call sets at which workers of any lane must look
  emptied = {}, -- keys @backlogs:{user} to be deleted
  to_lower = 100, -- how many background pushes may still be put behind alerts, see *lower*
}

-- place: puts a job into its backlog, or leases it if it is no notification. from: the lane of its queue, or nil.
-- Returns false if the job must go back to its queue, where the caller reads it first.
local function place(id, from)
  if look.leases[id] then return true end -- the queues had it twice
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

-- The jobs of dead workers come first, as they were at the head of their backlogs. No user is visited before all of
-- them are found: if more leases have ended than this call has room for, the caller pulls again at once.
local room = most - take_over_dead(look)
local lease_ends = tonumber(redis.call('ZRANGE', '@leases', '0', '0', 'WITHSCORES')[2] or -1)
if lease_ends >= 0 and lease_ends <= now then
  waits.write()
  reply[PULLED.next_us], reply[PULLED.rq_jobs], reply[PULLED.shut] = now, rq_jobs, false
  return reply
end

-- look_after: visits a user. If the caller must write something for the user first, the user stays due, and room for
-- one visit is kept.
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

local wake_ups, users_due, due_in_all = {}, {}, 0 -- the users who are due, as many as one call can visit
for i, lane in ipairs(lanes) do
  wake_ups[i] = redis.call('ZRANGEBYSCORE', '@wakeups:' .. lane, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, most)
  users_due[i] = #wake_ups[i] / 2
  due_in_all = due_in_all + users_due[i]
end

-- place_due: the jobs that are due get half of the room, and the new ones the other half at least.
local half = math.ceil(room / 2)
local least_for_new = room - half
local function place_due(id)
  if room == least_for_new or redis.call('ZREM', '@later', id) == 0 then return end
  place(id)
  room = room - 1
end
local due_first = redis.call('ZRANGEBYSCORE', '@later', '-inf', text(now), 'LIMIT', 0, half)
-- Thousands of jobs may fall due at one moment. A job that has its order already, such as a retry, does not wait behind
-- them. A job gets its order when it is placed, so jobs without one are placed only in the order of their times.
if half > 0 and #due_first == half then
  local due_last = redis.call('ZREVRANGEBYSCORE', '@later', text(now), '-inf', 'LIMIT', 0, math.floor(half / 2))
  for _, id in ipairs(due_last) do
    if redis.pcall('HEXISTS', job_key(id), 'push_order') == 1 then place_due(id) end
  end
end
for _, id in ipairs(due_first) do place_due(id) end

-- stay: puts the jobs of a queue from the i-th on back to its head. The caller gets all that it must read in one reply.
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

-- Room is kept for the users who are due: else more new jobs would be taken than may go, and the next calls would have
-- ever more users due. New jobs get at least half of the room. They go the direct way, unless many users are due or
-- something is held, of which only a visit knows.
if in_queues > 0 then
  local left = look.full - due_in_all
  if not some_rare and left >= most * 3 / 4 then direct.room = left end
  room = math.min(room, math.max(half, left))
end

-- take_from: takes n jobs from a lane's queue, up to the first one that has to stay.
local function take_from(lane, n)
  local queue = '@rq:queue:' .. lane
  local ids = redis.call('LPOP', queue, n) or {}
  orders.expected = math.max(#ids, 1)
  direct.read(ids, lane)
  for j, id in ipairs(ids) do
    -- RQ's own scheduler may have queued a job that waits in `later`.
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

-- Then come the users whose wake-up is due, as many as have room beside the users of new jobs. If users who waited for
-- a route are let go as well, the user who has waited longest comes first.
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

-- attend_all: visits in each lane the users who waited before the users of new jobs. The least share of each lane is
-- visited first, as there may be no room for more.
local function attend_all(first, last)
  for i, lane in ipairs(lanes) do
    for j = first, math.min(last, #due[i] + #newly[i]) do
      attend(due[i][j] or newly[i][j - #due[i]], lane)
    end
  end
end
write_gathered() -- before the visits: they may change the expected times that *direct* has gathered
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
