-- settle: closes permits with what happened to them, moves each job to its next state, and sets the wake-ups of the
-- users who still have something waiting.
-- ARGV 1 clock  2 keep_failed s, see ends.lua  3 keep_delivered µs  4 the worker's name
--      5 rules, JSON (see rule_table.lua)
--      6 the jobs, JSON: [job id, permit, user, category, index of the user's policy, reached, state, word,
--          detail, answered, gone or false, handed], …
--     7 keep_feedback ms
--     8 numbers, JSON {labels: for each job '<category>|<route>' to count it under, add: to those of the minute,
--     {field: how many}} (see minute.lua); or ''
--     9 what the users have chosen, as far as the caller knows, see preferences.lua; or ''
--   reached 1: it may have reached the user: the permit's time becomes now. 0: the permit is refunded.
--   state 'delivered' | 'failed' (detail: the reason, as RQ stores it) | 'dropped' (detail: the reason)
--         | 'later' (detail: µs to wait; an attempt was spent) | 'wait' (as later, no attempt)
--         | 'backlog' (back to its place at once, no attempt; detail: 'fault' where it was refused)
--         | 'queue' (back to the head of its queue) | 'handed_to_rq' (RQ has it: only the lease ends);
--         both for jobs that are no notifications of ours, with an empty user
--   word: under which it is counted. answered: JSON of what the devices answered finally, or ''.
--   handed: '<µs since it was handed over> <answers>', see history.lua; only where a history is kept and it was.
--   gone: the tokens that a provider now called dead, [platform, token, app or '', reason, since µs or ''], …; left out
--         for none. Each becomes an entry of the stream @feedback, which is as old as keep_feedback at most.
-- returns for each job 1, or 0 where the lease was no longer the caller's: nothing was changed then.
--! include clock keys history counts burst rules idle_leaders candidate ends cancel leaving enter_backlog rule_table
--! include wake_ups parts claims gather targets permits limits quiet_hours preferences admits_at orphans minute
--! include tagged first_write
local now, keep_failed, keep_delivered, worker = now_us(ARGV[1]), ends.read(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local rules, keep_feedback = read_rules(ARGV[5]), tonumber(ARGV[7])
local RENEW_EVERY, now_text = 8, text(now)
history.by = '\n' .. worker:gsub('%c', ' ') .. '\n' .. (rules.version or '') .. '\n'
local reply, touched, order, totals = {}, {}, {}, {}
local earliest = math.huge -- of what is set here to fall due for whoever looks first
local finished = {} -- the jobs to be deleted

local numbers = ARGV[8] and ARGV[8] ~= '' and cjson.decode(ARGV[8]) or {labels = {}, add = {}}

local function count(user, word)
  totals[word] = (totals[word] or 0) + 1
  if numbers.label then
    local field = 'o|' .. word .. '|' .. numbers.label
    numbers.add[field] = (numbers.add[field] or 0) + 1
  end
  if user == '' then return end
  local usage = '@usage:{' .. user .. '}'
  if redis.call('HINCRBY', usage, word, '1') % RENEW_EVERY == 1 then
    redis.call('HSETNX', usage, 'first', now_text)
    redis.call('EXPIRE', usage, '2592000') -- 30 days: an idle user leaves nothing behind
  end
  redis.call('HSET', usage, 'last', now_text)
end

local function close_permit(permit, sent, reached, cost)
  for n = 1, cost do
    local member = n == 1 and permit or permit .. '#' .. n
    if reached then redis.call('ZADD', sent, 'XX', now_text, member) else redis.call('ZREM', sent, member) end
  end
end

-- note_sent: the sends of an orphan may have been forgotten since it was in flight with a worker that lived.
local function note_sent(sent, policy, permit, cost)
  if not is_empty(policy) then record(sent, policy, permit, now, now_text, now, true, cost) end
end

-- read_settled: a job as its worker tells of it, and as its hash does. holder: the permit under which it is in flight
-- now. origin: false where the job was deleted while it was in flight.
local function read_settled(id, permit, user, category, index, reached, state, word, detail, answered, gone, handed)
  local key = job_key(id)
  local holder, origin, status, requeued, orphan, tagged, accepted, held, counted = unpack(redis.call('HMGET', key,
    'push_permit', 'origin', 'status', 'push_again', 'push_orphan', 'push_tagged', 'push_accepted', 'push_held',
    'push_counted'))
  return {id = id, permit = permit, user = user, category = category, policy = rules.users[index + 1],
    reached = reached == 1, state = state, word = word, detail = detail, answered = answered, gone = gone,
    handed = handed, key = key, holder = holder, origin = origin, status = status, requeued = requeued,
    orphan = orphan, tagged = tagged, accepted = accepted, held = held, counted = counted_of(permit, counted),
    meta = not origin and cjson.encode({user = user, category = category}) or nil}
end

local function close_devices(job, unused)
  local targets, answered = unpack(redis.call('HMGET', job.key, 'push_targets', 'push_answered'))
  local devices = targets_of(targets or '', answered, nil)
  for _, device in ipairs(devices) do
    close_device(rules, device, job.permit, now_text, job.reached, unused, #devices == 1)
  end
end

local function delivered(job)
  -- RQ's own cancel may have come, too late.
  if job.origin and job.status == 'canceled' then redis.call('ZREM', '@rq:canceled:' .. job.origin, job.id) end
  finished[#finished + 1] = job.key
  if keep_delivered > 0 then gather('ZADD', '@delivered', now_text, job.id) end
  if job.tagged then redis.call('ZREM', tagged_key(job.user), job.id) end
end

local function add_one(key, field) -- no HINCRBY: anything may stand there
  redis.call('HSET', key, field, (number(redis.call('HGET', key, field)) or 0) + 1)
end

local function failed(job)
  local id, key = job.id, job.key
  redis.call('HDEL', key, 'push_permit', 'push_order', 'push_deadline', 'push_crashes', 'push_begun',
    'push_answered', 'push_refusals', 'push_orphan', 'push_counted')
  if job.word ~= 'expired' then add_one(key, 'push_attempts') end
  redis.call('HSET', key, 'status', 'failed', 'push_outcome', job.word)
  redis.call('EXPIRE', key, keep_failed)
  redis.call('ZREM', '@rq:canceled:' .. job.origin, id) -- RQ's own cancel came too late
  local expires = math.floor(now / 1000000) + keep_failed
  -- RQ's tools could list nothing of a registry in which an id stands that is no text.
  if is_text(id) then redis.call('ZADD', '@rq:failed:' .. job.origin, expires, id) end
  local results = '@rq:results:' .. id
  redis.call('XADD', results, 'MAXLEN', 10, '*', 'type', 2, 'worker_name', worker, 'exc_string', job.detail)
  redis.call('EXPIRE', results, keep_failed)
end

local function dropped(job)
  redis.call('HDEL', job.key, 'push_permit', 'push_deadline', 'push_counted')
  end_unsent(now, job.id, job.origin, job.word, keep_failed, 'push_reason', job.detail)
end

-- note_answers: what a worker was answered of one that goes on. why: what holds it back from now on, or nil.
local function note_answers(job, why)
  if job.answered ~= '' then redis.call('HSET', job.key, 'push_answered', job.answered) end
  if not job.accepted then return end
  local held = job.held
  if job.handed then
    local ago, answers = job.handed:match('^(%d+) (.*)$')
    held = history.add(job.accepted, held, now - ago, 'f=' .. answers)
  end
  if why then held = history.add(job.accepted, held, now, why) end
  if held then redis.call('HSET', job.key, 'push_held', held) end
end

-- wait: it goes to its backlog after so many µs; or ends at its expiry, not at a wait after it.
local function wait(job, us)
  local deadline = tonumber(redis.call('HGET', job.key, 'push_deadline') or '')
  if deadline then us = math.max(0, math.min(us, deadline - now)) end
  redis.call('HSET', job.key, 'status', 'scheduled')
  redis.call('ZADD', '@later', now + us, job.id)
  redis.call('ZADD', '@rq:scheduled:' .. job.origin, seconds(now + us), job.id)
  earliest = math.min(earliest, now + us)
end

local function back(job)
  local key, state = job.key, job.state
  redis.call('HDEL', key, 'push_permit', 'push_orphan', 'push_counted')
  if state == 'handed_to_rq' then -- from now on its meta steers nothing, and all that becomes of it is RQ's affair
    forget(key)
    redis.call('HSET', key, 'push_rq_job', '1')
    return
  end
  if state == 'queue' then
    redis.call('HSET', key, 'status', 'queued')
    redis.call('LPUSH', '@rq:queue:' .. job.origin, job.id)
    return
  end
  if state == 'later' then add_one(key, 'push_attempts') end
  if state == 'wait' or job.detail == 'fault' then add_one(key, 'push_refusals') end
  note_answers(job, state ~= 'backlog' and 'r')
  if state ~= 'backlog' then return wait(job, tonumber(job.detail)) end
  -- The wake-ups are set below for a user who has something waiting; one whose backlog was adopted is new here.
  local what, user, lane = enter_backlog(now, job.id)
  if what == 'entered' then
    redis.call('ZADD', '@gates:' .. lane, 'LT', now_text, user)
    note_due(now, lane)
  end
end

-- again: somebody enqueued the job under its id while it was in flight, so its hash is the new one's. What was in
-- flight ends here, and the new one begins. Where it was taken out of its queue meanwhile, it goes back there.
local function again(job)
  forget(job.key)
  if job.requeued then redis.call('LPUSH', '@rq:queue:' .. job.origin, job.id) end
  local ended = job.state == 'delivered' or job.state == 'failed' or job.state == 'dropped'
  if not ended then job.word = 'superseded' end
end

-- cancelled: RQ's own cancel came while it was in flight: it is not tried again, and *end_cancelled* counts it.
local function cancelled(job)
  redis.call('HDEL', job.key, 'push_permit', 'push_orphan', 'push_counted')
  note_answers(job)
  end_cancelled(now, job.id, redis.call('HMGET', job.key, unpack(CANCEL_READS)), keep_failed, keep_delivered)
  job.word = ''
end

-- move: the job goes to its next state; job.word becomes that under which it is counted. Returns whether its end is to
-- be told here: the others are told where they come about.
local function move(job)
  local state = job.state
  if job.origin and job.status == 'queued' and job.user ~= '' then again(job) return true end
  if state == 'delivered' then delivered(job) return true end
  if not job.origin then job.word = 'cancelled' return true end -- somebody deleted it
  if state == 'failed' then failed(job) return true end
  if state == 'dropped' then dropped(job)
  elseif job.status == 'canceled' and job.user ~= '' then cancelled(job)
  else back(job) end
  return false
end

local function tell_feedback(id, user, gone)
  local oldest = text(math.max(0, math.floor(now / 1000) - keep_feedback))
  for _, dead in ipairs(gone) do
    local platform, token, app, reason, since = unpack(dead)
    redis.call('XADD', '@feedback', 'MINID', '~', oldest, '*', 'platform', platform, 'token', token, 'app', app,
      'user', user, 'reason', reason, 'gone_at', since == '' and now_text or since, 'job_id', id)
  end
  redis.call('PEXPIRE', '@feedback', text(keep_feedback))
end

-- end_lease: returns whether the lease was the caller's. Without its hash a job was deleted in flight, and is leased
-- still; or another worker has ended it since.
local function end_lease(job)
  if job.origin and job.holder ~= job.permit then return false end
  job.lease_ends = job.counted.devices and redis.call('ZSCORE', '@leases', job.id)
  if job.origin and job.state == 'delivered' then gather('ZREM', '@leases', job.id)
  elseif redis.call('ZREM', '@leases', job.id) == 0 and not job.origin then return false end
  for _, lane in ipairs(job.origin and {job.origin} or rules.lanes) do
    gather('ZREM', '@rq:wip:' .. lane, job.id .. ':' .. job.permit)
  end
  return true
end

-- close: its permit becomes now, or is refunded.
local function close(job)
  local permit, user, category = job.permit, job.user, job.category
  local cost = job.counted.cost
  if not job.origin then cost = math.max(cost_in(sent_key(user), permit), cost_in(sent_key(user, category), permit)) end
  close_permit(permit, sent_key(user), job.reached, cost)
  close_permit(permit, sent_key(user, category), job.reached, cost)
  if job.orphan then
    redis.call('HDEL', backlogs_key(user), ORPHAN .. job.id)
    if job.reached then
      note_sent(sent_key(user), job.policy, permit, cost)
      note_sent(sent_key(user, category), policy_of(rules, category), permit, cost)
    end
  end
  if job.lease_ends and job.origin then close_devices(job, math.max(0, job.lease_ends - now)) end
end

local function settle(entry)
  local job = read_settled(unpack(entry))
  if not end_lease(job) then return 0 end
  close(job)
  local user, is_told = job.user, move(job)
  if job.word ~= '' then count(user, job.word) end
  if user ~= '' then
    if is_told then ends.tell(now, job.id, job.word, job.detail, job) end
    release(user, job.category, now)
  end
  if job.gone then tell_feedback(job.id, user, job.gone) end
  if not touched[user] then
    touched[user] = job.policy
    order[#order + 1] = user
  end
  return 1
end

for i, entry in ipairs(cjson.decode(ARGV[6])) do
  numbers.label = numbers.labels[i]
  reply[#reply + 1] = settle(entry)
end
write_gathered()
if #finished > 0 then redis.call('DEL', unpack(finished)) end

-- set_user_wake_ups: leaves the wake-ups of a user who has something waiting. fields: of @lines:{user}.
local function set_user_wake_ups(user, fields)
  local backlogs, turn, closed = {}, nil, closed_backlogs(user, fields)
  local user_next = {}
  local count, lanes = backlogs_in(fields)
  if count == 0 and #fields > 0 and not closed then redis.call('DEL', backlogs_key(user)) end
  if count > MAX_LINES then -- *admit* looks at them a part at a time
    local opens = bypasses_any(rules) and 0 or next_for(sent_key(user), touched[user], 1)
    set_part_wake_ups(user, lanes, math.min(math.max(now, opens), now + LONGEST_PART))
    fields = {}
  end
  for i = 1, #fields, 2 do
    if fields[i] == '#turn' then turn = fields[i + 1] end
    local head = fields[i]:sub(1, 1) ~= '#' and redis.call('ZRANGE', backlog_key(user, fields[i]), '0', '0')[1]
    if head then
      local category, bypass = fields[i], bypasses(rules, fields[i])
      local backlog = {category = category, lane = fields[i + 1], head = head, policy = policy_of(rules, category),
        bypass = bypass, drops = drops(rules, category), cost = cost_of(rules, category)}
      -- Where a zone is missing *admit* says so.
      backlog.at = opens_at(rules, user, touched[user], backlog, user_next, now) or now
      if backlog.at > now and is_dropped(backlog) then backlog.at = now end
      backlog.elsewhere = is_closed(closed, backlog.category, bypass)
      if backlog.elsewhere then backlog.at = now + CLOSED end
      backlogs[#backlogs + 1] = backlog
    end
  end
  set_wake_ups(user, backlogs, now, turn)
end

local waiting, fields_of = {}, {}
for _, user in ipairs(order) do
  fields_of[user] = redis.call('HGETALL', backlogs_key(user))
  if #fields_of[user] > 0 then waiting[#waiting + 1] = user end
end
preferences.read(rules, waiting, ARGV[9])
for _, user in ipairs(waiting) do
  if preferences.stale[user] then -- *admit* is to say so
    local _, lanes = backlogs_in(fields_of[user])
    set_part_wake_ups(user, lanes, now)
  else
    set_user_wake_ups(user, fields_of[user])
  end
end
for word, n in pairs(totals) do redis.call('HINCRBY', '@stats', word, n) end
add_to_minute(now, numbers.add)
note_due(earliest)
wake_leaders()

if keep_delivered > 0 then
  local old = redis.call('ZRANGEBYSCORE', '@delivered', '-inf', now - keep_delivered, 'LIMIT', 0, 200)
  if #old > 0 then redis.call('ZREM', '@delivered', unpack(old)) end
end
return reply
