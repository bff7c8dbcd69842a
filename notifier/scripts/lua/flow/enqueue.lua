-- enqueue: accepts notifications as RQ jobs, each exactly once however often the call is repeated.
-- ARGV an ENQUEUE, and for each a JOB, see records.py
-- returns for each the job id: the one given, or that of an earlier notification with the same dedupe key; or where as
--         much waits as may, '!user' or '!all', how many wait, and how many may, parted by blanks
--! needs add_to_minute arriving_key backlog_key backlogs_key end_unsent ends enter_backlog HIGH history job_key
--! needs LANES leave_backlog note_candidate note_due note_tagged now_us same_waiting seconds supersede tally
--! needs text waits
local now, dedupe_for, timeout = now_us(ARGV[ENQUEUE.clock]), ARGV[ENQUEUE.dedupe_for_ms], ARGV[ENQUEUE.timeout_s]
local stamp, in_all = ARGV[ENQUEUE.stamp], tonumber(ARGV[ENQUEUE.max_waiting])
local reply, seen, numbers, now_text = {}, {}, {}, text(now)
local recording = redis.call('EXISTS', '@trace') == 1
ends.read(ARGV[ENQUEUE.keep])

-- max_waiting: how much may wait. Counted is what stands somewhere, not what was once added up: in all the queues and
-- RQ's scheduled jobs; of a user the backlogs, and @arriving before them. What is in flight does not wait.
-- Orders below it are of high priority: these are dropped only where nothing else waits.
local NORMAL = text(-HIGH / 2)
local MAX_GONE, MAX_OLDEST = 50, 10
local waiting_in_all, looked_through = nil, {}

local function count_in_all()
  if waiting_in_all then return waiting_in_all end
  waiting_in_all = 0
  for _, lane in ipairs(LANES) do
    waiting_in_all = waiting_in_all + redis.call('LLEN', '@rq:queue:' .. lane)
      + redis.call('ZCARD', '@rq:scheduled:' .. lane)
  end
  return waiting_in_all
end

local function count_of_user(user)
  local n = redis.call('ZCARD', arriving_key(user))
  for _, category in ipairs(redis.call('HKEYS', backlogs_key(user))) do
    if category:sub(1, 1) ~= '#' then n = n + redis.call('ZCARD', backlog_key(user, category)) end
  end
  return n
end

-- forget_gone: who was deleted or cancelled through RQ in the queue arrives no more. Once for a user in a call, the
-- first of them: those behind come to the front in time.
local function forget_gone(user)
  if looked_through[user] then return end
  looked_through[user] = true
  for _, id in ipairs(redis.call('ZRANGE', arriving_key(user), 0, MAX_GONE - 1)) do
    local job = redis.call('HMGET', job_key(id), 'status', 'push_arriving')
    if not job[2] or job[1] == 'canceled' then redis.call('ZREM', arriving_key(user), id) end
  end
end

-- is_arriving: whether any of the user's is in a queue still: it would come after what takes a place before it.
local function is_arriving(user)
  forget_gone(user)
  return redis.call('ZCOUNT', arriving_key(user), '-inf', text(now)) > 0
end

-- beyond: the limit that one more would exceed, 'user' or 'all', how many wait, and how many may; or nil.
local function beyond(user, of_user)
  if of_user > 0 and count_of_user(user) >= of_user then
    forget_gone(user)
    local waiting = count_of_user(user)
    if waiting >= of_user then return 'user', waiting, of_user end
  end
  if in_all and count_in_all() >= in_all then return 'all', count_in_all(), in_all end
end

-- drop_oldest: ends the oldest that waits in the backlog and that no worker has tried. Returns whether there was one.
local function drop_oldest(user, category)
  local backlog = backlog_key(user, category)
  local ids = redis.call('ZRANGEBYSCORE', backlog, NORMAL, '+inf', 'LIMIT', 0, MAX_OLDEST)
  if #ids == 0 then ids = redis.call('ZRANGE', backlog, 0, MAX_OLDEST - 1) end
  for _, id in ipairs(ids) do
    local job = redis.call('HMGET', job_key(id), 'origin', 'status', 'push_collapse', 'push_attempts', 'push_crashes',
      'push_answered', 'push_refusals', 'push_sent')
    if job[1] and job[2] == 'scheduled' and not (job[4] or job[5] or job[6] or job[7] or job[8]) then
      leave_backlog(now, user, category, id, job[3])
      end_unsent(now, id, job[1], 'dropped', 'push_reason', 'overflow')
      tally(user, 'dropped')
      if waiting_in_all then waiting_in_all = waiting_in_all - 1 end
      return true
    end
  end
  return false
end

-- make_room: where a limit holds. Returns 'collapse' for what is to take the place of one that waits, else 'queue'; and
-- the user whose arrival is noted. Or nil and the refusal. at: its own time; then it takes nobody's place.
local function make_room(meta, limit, at)
  local of_user, overflow = limit:match('^(%d+) (.+)$')
  local read = cjson.decode(meta)
  local user, category, same = read.user, read.category or 'default', nil
  of_user = tonumber(of_user)
  local which, waiting, most = beyond(user, of_user)
  if which then
    if overflow == 'collapse' and read.collapse_id and not at and not is_arriving(user) then
      same = same_waiting(user, category, read.collapse_id)
    end
    if not same and not (overflow == 'drop_oldest' and drop_oldest(user, category)) then
      tally(user, 'refused')
      return nil, '!' .. which .. ' ' .. waiting .. ' ' .. most
    end
  end
  return same and 'collapse' or 'queue', (of_user > 0 or overflow == 'collapse') and user
end

local function join(id, user, category, collapse_id, order)
  local old = same_waiting(user, category, collapse_id)
  note_candidate(user, category, collapse_id, id)
  return supersede(now, user, category, old, id, order)
end

-- take_place: the job goes at once to the place of the one that waits under its collapse id.
local function take_place(id)
  local _, user, lane, is_new = enter_backlog(now, id, join)
  if is_new then redis.call('ZADD', '@wakeups:' .. lane, 'LT', text(now), user) end
  note_due(now, lane)
end

-- note_arriving: by the job's own time, so that those of next week do not hide from *forget_gone* who is gone.
local function note_arriving(user, id, key, at)
  redis.call('HSET', key, 'push_arriving', 1)
  redis.call('ZADD', arriving_key(user), at or now, id)
  redis.call('EXPIRE', arriving_key(user), 2592000)
end

local lanes_now = {} -- what @lanes says
-- lane_of: the lane in whose queue the next of a category is to stand, which is to go in `lane`. After a change that is
-- the one before until *pull* has taken the last of the category out of it, or they might go after it.
--   @lanes   hash category -> lane in which the last of it was accepted; while it changes, and the job that was
--   @behind  hash category -> lane before, while it changes: every worker takes from its queue
local function lane_of(category, lane, id)
  local said = lanes_now[category] or redis.call('HGET', '@lanes', category) or ''
  local before, changes = said:match('^(%S+)( ?)')
  if before and (changes ~= '' or before ~= lane and redis.call('EXISTS', '@rq:queue:' .. before) == 1) then
    redis.call('HSET', '@behind', category, before)
    note_due(now, lane)
    lane, lanes_now[category] = before, before .. ' ' .. id
  else lanes_now[category] = lane end
  if said ~= lanes_now[category] then redis.call('HSET', '@lanes', category, lanes_now[category]) end
  return lane
end

-- own_time: the µs at which a job goes to its backlog that was accepted for `at`. Those for the same moment come one µs
-- after the other, in the order in which they were accepted: `later` has no other order for them.
local function own_time(at)
  local same, moment = '@same_time', text(at)
  local free = math.max(at, tonumber(redis.call('ZSCORE', same, moment) or 0))
  redis.call('ZADD', same, text(free + 1), moment)
  return free
end

-- write_job: the job's hash, as RQ writes it, and what is ours in it. at: its own time, or nil.
local function write_job(key, lane, at, job)
  local fields = {'created_at', stamp, 'enqueued_at', stamp, 'origin', lane, 'data', job.data, 'meta', job.meta,
    'description', 'notifier.deliver', 'timeout', timeout, 'status', at and 'scheduled' or 'queued'}
  local function put(name, value) fields[#fields + 1], fields[#fields + 2] = name, value end
  if job.targets ~= '' then put('push_targets', job.targets) end
  if job.tagged ~= '' then put('push_tagged', '1') end
  if job.dedupe ~= '' then put('push_dedupe', job.dedupe) end
  if job.expires_in ~= '' then put('push_deadline', (at or now) + tonumber(job.expires_in)) end
  if history.keep then
    put('push_accepted', now_text)
    if at then put('push_held', '0 t') end
  end
  redis.call('HSET', key, unpack(fields))
end

-- send_on: the job goes to where it waits: another's place, its own time, or the end of a queue.
local function send_on(id, lane, at, how, queue)
  if how == 'collapse' then return take_place(id) end
  if not at then return redis.call('RPUSH', '@rq:queue:' .. queue, id) end
  local goes = own_time(at)
  redis.call('ZADD', '@rq:scheduled:' .. lane, seconds(goes), id)
  redis.call('ZADD', '@later', text(goes), id)
  note_due(goes)
end

-- count_accepted: in the totals, in this minute's numbers, and in what `notifier preview` plays again.
local function count_accepted(lane, at, job)
  if not seen[lane] then
    seen[lane] = true
    redis.call('SADD', '@rq:queues', '@rq:queue:' .. lane)
  end
  redis.call('HINCRBY', '@stats', 'accepted', '1')
  local field = 'a|' .. (job.category == '' and 'default' or job.category)
  numbers[field] = (numbers[field] or 0) + 1
  if recording then redis.call('XADD', '@trace', '*', 'at', at or now, 'meta', job.meta, 'expires', job.expires_in) end
end

local function accept(job)
  local id, lane, dedupe, category = job.id, job.lane, job.dedupe, job.category
  -- It may be this very id, where the same call comes again. What ends before it was sent leaves the key free.
  local earlier = dedupe ~= '' and redis.call('GET', '@dedupe:' .. dedupe)
  if earlier then return earlier end
  local key = job_key(id)
  -- The producer's connection may have broken between the call and the reply: this is the same call again.
  local again = redis.call('EXISTS', key) == 1 or redis.call('ZSCORE', '@delivered', id)
  local at, how, counted = tonumber(job.send_at), 'queue', nil
  if at and at <= now then at = nil end
  if job.limit ~= '' and not again then
    how, counted = make_room(job.meta, job.limit, at)
    if not how then return counted end
  end
  if again then return id end
  local queue = category ~= '' and how == 'queue' and not at and lane_of(category, lane, id) or lane
  if dedupe ~= '' then redis.call('SET', '@dedupe:' .. dedupe, id, 'PX', dedupe_for) end
  write_job(key, lane, at, job)
  if job.tagged ~= '' then note_tagged(job.tagged, id, at or now, now) end
  send_on(id, lane, at, how, queue)
  if how == 'queue' then
    if counted then note_arriving(counted, id, key, at) end
    if waiting_in_all then waiting_in_all = waiting_in_all + 1 end
  end
  count_accepted(lane, at, job)
  return id
end

for at = ENQUEUE.n, #ARGV - 1, JOB.n do
  reply[#reply + 1] = accept({id = ARGV[at + JOB.id], lane = ARGV[at + JOB.lane], data = ARGV[at + JOB.data],
    meta = ARGV[at + JOB.meta], expires_in = ARGV[at + JOB.expires_in], send_at = ARGV[at + JOB.send_at],
    dedupe = ARGV[at + JOB.dedupe], targets = ARGV[at + JOB.targets], limit = ARGV[at + JOB.limit],
    category = ARGV[at + JOB.category], tagged = ARGV[at + JOB.tagged]})
end
add_to_minute(now, numbers)
waits.write()
return reply
