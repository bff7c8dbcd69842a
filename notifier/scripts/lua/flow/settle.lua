-- settle: closes permits with the results of their sends, moves each job to its next state, and sets the wake-ups of
-- users with waiting jobs.
-- ARGV a SETTLE, and for each job an ENDED, see records.py. `more` of a job that was not plainly delivered:
--   reached true: the job may have reached the user, and its permit is dated now. false: its permit is refunded.
--   state 'delivered' | 'failed' (detail: the reason, as RQ stores it) | 'dropped' (detail: the reason)
--         | 'later' (detail: µs to wait; spends an attempt) | 'wait' (as 'later', without an attempt)
--         | 'backlog' (back to its place, without an attempt; detail: 'fault' if it was refused, or µs to wait there)
--         | 'queue' (back to the head of its queue; detail: 'end' for the end, so that another worker may run it)
--         | 'aside' (as 'failed', but kept for a year: no worker can run it) | 'handed_to_rq' (only the lease ends).
--         The last three are for jobs that are no notifications. RQ runs those of a user under a permit, see rq_run.lua
--   word: the outcome under which the job is counted. answered: JSON of the devices' final answers, or ''.
--   gone: the tokens that a provider has just reported dead, [platform, token, app or '', reason, since µs or ''], …;
--         absent without any. Each becomes an entry of the stream @feedback, and lasts for keep_feedback_ms.
-- returns for each job 1; or 0 if the lease was no longer the caller's: nothing was changed then. A job that the caller
--   has already handed to RQ is 1 again, as the first reply was lost.
--! first_write
--! needs add_to_minute backlogs_key claim_key close_devices close_overall cost_in counted_of date_sends ends gather
--! needs give_back history job_key mark_of_rq move note_due now_us ORPHAN read_rules release
--! needs remember rules_of sent_key set_user_wake_ups tagged_key tell_feedback text users_rules waits wake_leaders
--! needs write_gathered
local now, worker, rules = now_us(ARGV[SETTLE.clock]), ARGV[SETTLE.worker], read_rules(ARGV[SETTLE.rules])
local now_text = text(now)
-- What the pieces know of this call. earliest: the earliest µs that it sets at which workers of any lane must look.
local look = {now = now, now_text = now_text, worker = worker, rules = rules, earliest = math.huge,
  keep_feedback = tonumber(ARGV[SETTLE.keep_feedback_ms])}
ends.read(ARGV[SETTLE.keep])
history.by = '\n' .. worker:gsub('%c', ' ') .. '\n' .. (rules.version or '') .. '\n'
local reply, touched, totals, numbers = {}, {}, {}, cjson.decode(ARGV[SETTLE.numbers])
local by_devices = {} -- user -> whether a send of this call was counted for devices
users_rules.begin(rules)
local finished = {} -- keys of jobs to be deleted
local released = {} -- key of a claim -> how many of its jobs are settled

-- count: counts an outcome in the totals and, beside what the caller has measured, in the minute.
local function count(word, label)
  totals[word] = (totals[word] or 0) + 1
  if label == '' then return end
  local field = 'o|' .. word .. '|' .. label
  numbers[field] = (numbers[field] or 0) + 1
end

-- close_permit: dates the sends of a permit now, or refunds them. late: the lease has ended, so the sends may have been
-- trimmed, and a burst may have counted them at that end.
local function close_permit(permit, sent, policy, reached, cost, late)
  local at = policy.burst and tonumber(redis.call('ZSCORE', sent, permit) or now)
  date_sends(sent, permit, cost, reached and now_text, late and policy.horizon)
  if at and at < now then give_back(sent, at, cost) end
end

-- some_late: whether a lease has ended that nobody has settled or taken over yet.
local first_lease = tonumber(redis.call('ZRANGE', '@leases', '0', '0', 'WITHSCORES')[2])
local some_late = first_lease and first_lease <= now

-- The policy of a user whose rules are not known here, see users_rules.lua: a late send is kept for as long as any
-- rule may need it.
local UNKNOWN = {gap = 0, windows = {}, horizon = 32 * 86400000000}

-- read_settled: a job's fields, of its ENDED and of its hash. holder: the permit under which the job is in flight now.
-- origin: false if the job was deleted while it was in flight.
local PLAINLY = {reached = true, state = 'delivered', word = 'delivered', detail = '', answered = ''}
PLAINLY.__index = PLAINLY
local function read_settled(at)
  local id, permit, more = ARGV[at + ENDED.id], ARGV[at + ENDED.permit], ARGV[at + ENDED.more]
  local user, category, key = ARGV[at + ENDED.user], ARGV[at + ENDED.category], job_key(id)
  local holder, origin, status, orphan, tagged, noted, counted = unpack(redis.call('HMGET', key,
    'push_permit', 'origin', 'status', 'push_orphan', 'push_tagged', 'push_history', 'push_counted'))
  local said, index = more == '' and PLAINLY or cjson.decode(more), users_rules.index_of(user)
  said.__index = said
  local job = setmetatable({id = id, permit = permit, user = user, category = category, label = ARGV[at + ENDED.label],
    index = index or 0, policy = index and rules.users[index + 1] or UNKNOWN, key = key, holder = holder,
    handed = ARGV[at + ENDED.handed], origin = origin, status = status, noted = noted,
    counted = counted_of(permit, counted)}, said)
  if orphan or tagged then job.orphan, job.tagged = orphan, tagged end
  if not origin then job.meta = cjson.encode({user = user, category = category}) end
  return job
end

local function delivered(job)
  -- RQ's own cancel came too late.
  if job.origin and job.status == 'canceled' then redis.call('ZREM', '@rq:canceled:' .. job.origin, job.id) end
  finished[#finished + 1] = job.key
  if ends.delivered > 0 then gather('ZADD', '@delivered', now_text, job.id) end
  if job.tagged then redis.call('ZREM', tagged_key(job.user), job.id) end
end

-- end_lease: returns whether the lease was the caller's. A job without a hash was deleted in flight: its lease is still
-- there, unless another worker has settled the job.
local function end_lease(job)
  if job.origin and job.holder ~= job.permit then return false end
  job.lease_ends = (some_late or job.counted.devices) and tonumber(redis.call('ZSCORE', '@leases', job.id))
  if job.origin and job.state == 'delivered' then gather('ZREM', '@leases', job.id)
  elseif redis.call('ZREM', '@leases', job.id) == 0 and not job.origin then return false end
  local member = job.id .. ':' .. job.permit
  if job.origin and job.status ~= 'queued' then gather('ZREM', '@rq:wip:' .. job.origin, member)
  else -- the job was deleted, or enqueued again, perhaps in another lane
    for _, lane in ipairs(rules.lanes) do gather('ZREM', '@rq:wip:' .. lane, member) end
  end
  return true
end

-- close: closes the job's permit wherever it counts.
local function close(job)
  local permit, user, category, cost = job.permit, job.user, job.category, job.counted.cost
  local of = rules_of(rules, category)
  local late = user ~= '' and (job.orphan or job.lease_ends and job.lease_ends <= now)
  if late then remember(user) end
  if not job.origin then cost = math.max(cost_in(sent_key(user), permit), cost_in(sent_key(user, category), permit)) end
  close_permit(permit, sent_key(user), job.policy, job.reached, cost, late)
  close_permit(permit, sent_key(user, category), of.policy, job.reached, cost, late)
  if of.overall then close_overall(of.overall, category, permit, job.reached, now, late) end
  if job.orphan then redis.call('HDEL', backlogs_key(user), ORPHAN .. job.id) end
  if job.counted.devices and job.lease_ends and job.origin then close_devices(look, job, late) end
end

-- was_handed: whether an earlier call, whose reply was lost, handed the job to RQ. RQ may have abandoned the job since.
local function was_handed(job)
  if job.state ~= 'handed_to_rq' or job.holder or job.user ~= '' and job.status ~= 'started' then return false end
  return redis.call('HGET', job.key, 'push_rq_job') == mark_of_rq(job)
end

local function settle(at)
  local job = read_settled(at)
  if not end_lease(job) then return was_handed(job) and 1 or 0 end
  close(job)
  local user, ends_here = job.user, true
  if job.state == 'delivered' and not (job.origin and job.status == 'queued' and user ~= '') then delivered(job)
  else ends_here = move(look, job) end
  if job.word ~= '' then count(job.word, job.label) end
  if user ~= '' then
    if ends_here then ends.tell(now, job.id, job.word, job.detail, job) end
    local claim = claim_key(user, job.category)
    released[claim] = (released[claim] or 0) + 1
  end
  if job.gone then tell_feedback(look, job.id, user, job.gone) end
  touched[user] = job.policy ~= UNKNOWN and job.index
  if job.counted.devices then by_devices[user] = true end
  return 1
end

for at = SETTLE.n, #ARGV - 1, ENDED.n do reply[#reply + 1] = settle(at) end
release(released, now)
write_gathered()
if #finished > 0 then redis.call('DEL', unpack(finished)) end

local backlogs = {}
for user in pairs(touched) do backlogs[#backlogs + 1] = backlogs_key(user) end
local some_wait = #backlogs > 0 and redis.call('EXISTS', unpack(backlogs)) > 0
for user, index in pairs(some_wait and touched or {}) do set_user_wake_ups(look, user, index, by_devices[user]) end
for word, n in pairs(totals) do redis.call('HINCRBY', '@stats', word, n) end
add_to_minute(now, numbers)
note_due(look.earliest)
wake_leaders()
waits.write()

return reply
