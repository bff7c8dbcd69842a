-- settle: closes permits with what happened to them, moves each job to its next state, and sets the gates of the
-- users who still have something waiting.
-- ARGV 1 clock  2 keep_failed s, see end.lua  3 keep_delivered µs  4 the worker's name
--      5 rules, JSON (see gates.lua)
--      6 the jobs, JSON: [job id, permit, user, category, index of the user's policy, reached, state, word,
--          detail, answered, gone or false, handed], …
--     7 keep_feedback ms
--     8 numbers, JSON {labels: for each job '<category>|<route>' to count it under, add: to those of the minute,
--     {field: how many}} (see minute.lua); or ''
--     9 what the users have chosen, as far as the caller knows, see preferences.lua; or ''
--   reached 1: it may have reached the user: the permit's time becomes now. 0: the permit is refunded.
--   state 'delivered' | 'failed' (detail: the reason, as RQ stores it) | 'dropped' (detail: the reason) | 'later'
--   (detail: µs to wait; an attempt
--         was spent) | 'wait' (as later, no attempt) | 'line' (back to its place at once, no attempt; detail: 'fault'
--         where it was refused)
--         | 'queue' (back to the head of its queue) | 'handed_to_rq' (RQ has it: only the lease ends);
--         both for jobs that are no notifications of ours, with an empty user
--   word: under which it is counted. answered: JSON of what the devices answered finally, or ''.
--   handed: '<µs since it was handed over> <answers>', see history.lua; only where a history is kept and it was.
--   gone: the tokens that a provider now called dead, [platform, token, app or '', reason, since µs or ''], …; left out
--         for none. Each becomes an entry of the stream @feedback, which is as old as keep_feedback at most.
-- returns for each job 1, or 0 where the lease was no longer the caller's: nothing was changed then.
--! include clock keys history counts burst rules due newcomer end cancel leaving
--! include lineup gates many claims gather targets limits zones preferences opens orphans minute tagged full
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

local function counts_devices(permit) return string.byte(permit, -1) == 100 end -- 'd', see *admit*

local function close_devices(key, permit, reached, unused)
  local job = redis.call('HMGET', key, 'push_targets', 'push_answered')
  local targets = targets_of(job[1] or '', job[2], nil)
  for _, target in ipairs(targets) do
    close_device(rules, target, permit, now_text, reached, unused, #targets == 1)
  end
end

-- cancelled_in: the lane in whose registry it stands, if RQ's own cancel came too late for it.
local function delivered(id, key, cancelled_in)
  if cancelled_in then redis.call('ZREM', '@rq:canceled:' .. cancelled_in, id) end
  finished[#finished + 1] = key
  if keep_delivered > 0 then gather('ZADD', '@delivered', now_text, id) end
end

local function add_one(key, field) -- no HINCRBY: anything may stand there
  redis.call('HSET', key, field, (number(redis.call('HGET', key, field)) or 0) + 1)
end

local function failed(id, key, origin, word, reason)
  redis.call('HDEL', key, 'push_permit', 'push_order', 'push_deadline', 'push_crashes', 'push_begun',
    'push_answered', 'push_refusals', 'push_orphan')
  if word ~= 'expired' then add_one(key, 'push_attempts') end
  redis.call('HSET', key, 'status', 'failed', 'push_outcome', word)
  redis.call('EXPIRE', key, keep_failed)
  redis.call('ZREM', '@rq:canceled:' .. origin, id) -- RQ's own cancel came too late
  local expires = math.floor(now / 1000000) + keep_failed
  -- RQ's tools could list nothing of a registry in which an id stands that is no text.
  if is_text(id) then redis.call('ZADD', '@rq:failed:' .. origin, expires, id) end
  local results = '@rq:results:' .. id
  redis.call('XADD', results, 'MAXLEN', 10, '*', 'type', 2, 'worker_name', worker, 'exc_string', reason)
  redis.call('EXPIRE', results, keep_failed)
end

-- with_answers: push_held with what a worker was answered of one that goes on.
local function with_answers(told)
  if not (told.accepted and told.handed) then return told.held end
  local ago, answers = told.handed:match('^(%d+) (.*)$')
  return history.add(told.accepted, told.held, now - ago, 'f=' .. answers)
end

local function back(id, key, origin, state, wait, answered, fault, told)
  redis.call('HDEL', key, 'push_permit', 'push_orphan')
  if state == 'handed_to_rq' then -- from now on its meta steers nothing, and all that becomes of it is RQ's affair
    forget(key)
    redis.call('HSET', key, 'push_rq_job', '1')
    return
  end
  if state == 'queue' then
    redis.call('HSET', key, 'status', 'queued')
    redis.call('LPUSH', '@rq:queue:' .. origin, id)
    return
  end
  if state == 'later' then add_one(key, 'push_attempts') end
  if state == 'wait' or fault then add_one(key, 'push_refusals') end
  if answered ~= '' then redis.call('HSET', key, 'push_answered', answered) end
  local held = with_answers(told)
  if told.accepted and state ~= 'line' then held = history.add(told.accepted, held, now, 'r') end
  if held then redis.call('HSET', key, 'push_held', held) end
  if state == 'line' then
    -- The gates are set below for a user who has something waiting; one whose line was adopted is new here.
    local what, user, lane = line_up(now, id)
    if what == 'lined' then
      redis.call('ZADD', '@gates:' .. lane, 'LT', now_text, user)
      note_due(now, lane)
    end
    return
  end
  local deadline = tonumber(redis.call('HGET', key, 'push_deadline') or '')
  -- It ends at its expiry, not at a wait after it.
  if deadline then wait = math.max(0, math.min(wait, deadline - now)) end
  redis.call('HSET', key, 'status', 'scheduled')
  redis.call('ZADD', '@later', now + wait, id)
  redis.call('ZADD', '@rq:scheduled:' .. origin, seconds(now + wait), id)
  earliest = math.min(earliest, now + wait)
end

-- again: somebody enqueued the job under its id while it was in flight, so its hash is the new one's. What was in
-- flight ends here, and the new one begins. popped: it was taken out of its queue meanwhile. Returns the word to count.
local function again(id, key, origin, popped, state, word)
  forget(key)
  if popped then redis.call('LPUSH', '@rq:queue:' .. origin, id) end
  local ended = state == 'delivered' or state == 'failed' or state == 'dropped'
  return ended and word or 'superseded'
end

-- cancelled: RQ's own cancel came while it was in flight: it is not tried again. Returns the word to count: ''.
local function cancelled(id, key, answered, told)
  redis.call('HDEL', key, 'push_permit', 'push_orphan')
  local held = with_answers(told)
  if held then redis.call('HSET', key, 'push_held', held) end
  if answered ~= '' then redis.call('HSET', key, 'push_answered', answered) end
  end_cancelled(now, id, redis.call('HMGET', key, unpack(CANCEL_READS)), keep_failed, keep_delivered)
  return ''
end

local function tell(id, user, gone)
  local oldest = text(math.max(0, math.floor(now / 1000) - keep_feedback))
  for _, dead in ipairs(gone) do
    local platform, token, app, reason, since = unpack(dead)
    redis.call('XADD', '@feedback', 'MINID', '~', oldest, '*', 'platform', platform, 'token', token, 'app', app,
      'user', user, 'reason', reason, 'gone_at', since == '' and now_text or since, 'job_id', id)
  end
  redis.call('PEXPIRE', '@feedback', text(keep_feedback))
end

local function settle(id, permit, user, category, index, reached, state, word, detail, answered, gone, handed)
  local key = job_key(id)
  local job = redis.call('HMGET', key, 'push_permit', 'origin', 'status', 'push_again', 'push_orphan', 'push_tagged',
    'push_accepted', 'push_held')
  if job[2] and job[1] ~= permit then return 0 end
  local lease_ends = counts_devices(permit) and redis.call('ZSCORE', '@leases', id)
  if job[2] and state == 'delivered' then gather('ZREM', '@leases', id)
  -- Without its hash a job was deleted in flight, and is leased still; or another worker has ended it since.
  elseif redis.call('ZREM', '@leases', id) == 0 and not job[2] then return 0 end
  for _, lane in ipairs(job[2] and {job[2]} or rules.lanes) do
    gather('ZREM', '@rq:wip:' .. lane, id .. ':' .. permit)
  end
  local cost = string.find(permit, 'x', 1, true) and tonumber(string.match(permit, 'x(%d+)')) or 1
  close_permit(permit, sent_key(user), reached == 1, cost)
  close_permit(permit, sent_key(user, category), reached == 1, cost)
  if job[5] then
    redis.call('HDEL', lines_key(user), ORPHAN .. id)
    if reached == 1 then
      note_sent(sent_key(user), rules.users[index + 1], permit, cost)
      note_sent(sent_key(user, category), policy_of(rules, category), permit, cost)
    end
  end
  if lease_ends and job[2] then close_devices(key, permit, reached == 1, math.max(0, lease_ends - now)) end
  local told = state == 'delivered' or state == 'failed' -- the other ends are told where they come about
  local known = {user = user, category = category, accepted = job[7], held = job[8], handed = handed}
  if not job[2] then known.meta = cjson.encode({user = user, category = category}) end
  if job[2] and job[3] == 'queued' and user ~= '' then
    word, told = again(id, key, job[2], job[4], state, word), true
  elseif state == 'delivered' then
    delivered(id, key, job[3] == 'canceled' and job[2])
    if job[6] then redis.call('ZREM', tagged_key(user), id) end
  elseif not job[2] then -- somebody deleted the job while it was in flight
    word, told = 'cancelled', true
  elseif state == 'failed' then failed(id, key, job[2], word, detail)
  elseif state == 'dropped' then
    redis.call('HDEL', key, 'push_permit', 'push_deadline')
    end_unsent(now, id, job[2], word, keep_failed, 'push_reason', detail)
  elseif job[3] == 'canceled' and user ~= '' then word = cancelled(id, key, answered, known)
  else back(id, key, job[2], state, tonumber(detail), answered, detail == 'fault', known) end
  if word ~= '' then count(user, word) end
  if told and user ~= '' then ends.tell(now, id, word, detail, known) end
  if gone then tell(id, user, gone) end
  if user ~= '' then release(user, category) end
  if not touched[user] then
    touched[user] = rules.users[index + 1]
    order[#order + 1] = user
  end
  return 1
end

for i, job in ipairs(cjson.decode(ARGV[6])) do
  numbers.label = numbers.labels[i]
  reply[#reply + 1] = settle(unpack(job))
end
write_gathered()
if #finished > 0 then redis.call('DEL', unpack(finished)) end

-- set_user_gates: leaves the gates of a user who has something waiting. fields: of @lines:{user}.
local function set_user_gates(user, fields)
  local lines, turn, closed = {}, nil, closed_lines(user, fields)
  local user_next = {}
  local count, lanes = lines_in(fields)
  if count == 0 and #fields > 0 and not closed then redis.call('DEL', lines_key(user)) end
  if count > MAX_LINES then -- *admit* looks at them a part at a time
    local opens = bypasses_any(rules) and 0 or next_for(sent_key(user), touched[user], 1)
    set_part_gates(user, lanes, math.min(math.max(now, opens), now + LONGEST_PART))
    fields = {}
  end
  for i = 1, #fields, 2 do
    if fields[i] == '#turn' then turn = fields[i + 1] end
    local head = fields[i]:sub(1, 1) ~= '#' and redis.call('ZRANGE', line_key(user, fields[i]), '0', '0')[1]
    if head then
      local category, bypass = fields[i], bypasses(rules, fields[i])
      local line = {category = category, lane = fields[i + 1], head = head, policy = policy_of(rules, category),
        bypass = bypass, drops = drops(rules, category), cost = cost_of(rules, category)}
      -- Where a zone is missing *admit* says so.
      line.at = opens_at(rules, user, touched[user], line, user_next, now) or now
      if line.at > now and is_dropped(line) then line.at = now end
      line.elsewhere = is_closed(closed, line.category, bypass)
      if line.elsewhere then line.at = now + CLOSED end
      lines[#lines + 1] = line
    end
  end
  set_gates(user, lines, now, turn)
end

local waiting, fields_of = {}, {}
for _, user in ipairs(order) do
  fields_of[user] = redis.call('HGETALL', lines_key(user))
  if #fields_of[user] > 0 then waiting[#waiting + 1] = user end
end
preferences.read(rules, waiting, ARGV[9])
for _, user in ipairs(waiting) do
  if preferences.stale[user] then -- *admit* is to say so
    local _, lanes = lines_in(fields_of[user])
    set_part_gates(user, lanes, now)
  else
    set_user_gates(user, fields_of[user])
  end
end
for word, n in pairs(totals) do redis.call('HINCRBY', '@stats', word, n) end
add_to_minute(now, numbers.add)
note_due(earliest)
wake_for_gates()

if keep_delivered > 0 then
  local old = redis.call('ZRANGEBYSCORE', '@delivered', '-inf', now - keep_delivered, 'LIMIT', 0, 200)
  if #old > 0 then redis.call('ZREM', '@delivered', unpack(old)) end
end
return reply
