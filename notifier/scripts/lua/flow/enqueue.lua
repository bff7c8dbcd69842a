-- enqueue: accepts notifications as RQ jobs, each exactly once however often the call is repeated.
-- ARGV an ENQUEUE, and for each a JOB, see records.py
-- returns for each the job id, or that of an earlier notification with the same dedupe key; or, if no more may wait,
--         '!user' or '!all', how many wait, and how many may, with blanks between
--! needs add_to_minute job_key make_room note_due note_tagged note_waiting now_us seconds take_place text
local now, dedupe_for = now_us(ARGV[ENQUEUE.clock]), ARGV[ENQUEUE.dedupe_for_ms]
local stamp, in_all = ARGV[ENQUEUE.stamp], tonumber(ARGV[ENQUEUE.max_waiting])
local reply, seen, numbers, now_text = {}, {}, {}, text(now)
local recording = redis.call('EXISTS', '@trace') == 1

local lanes_now = {} -- category -> the value in @lanes
-- has_left: whether a worker has taken this job out of a queue, and so all jobs before it. If the job was deleted by
-- hand or cancelled, it proves nothing about the others: the queue must be empty then.
local function has_left(queue, id)
  if redis.call('EXISTS', queue) == 0 then return true end
  local order, permit, status = unpack(redis.call('HMGET', job_key(id), 'push_order', 'push_permit', 'status'), 1, 3)
  local is_taken = order or permit or status == 'failed' or redis.call('ZSCORE', '@delivered', id)
  return is_taken and not redis.call('LPOS', queue, id, 'RANK', '-1') -- it may have been requeued
end

-- lane_of: the lane for the next job of a category whose configured lane is `lane`. After a change this is the former
-- lane until the last job of the category has left its queue; else the new one might overtake it.
--   @lanes  hash category -> lane of the last accepted job; during a change also that job's id
local function lane_of(category, lane, id)
  local said = lanes_now[category] or redis.call('HGET', '@lanes', category) or ''
  local before, last = said:match('^(%S*) ?(.*)$')
  local is_over = before == '' or before == lane or has_left('@rq:queue:' .. before, last)
  lanes_now[category] = is_over and lane or before .. ' ' .. id
  if said ~= lanes_now[category] then redis.call('HSET', '@lanes', category, lanes_now[category]) end
  return is_over and lane or before
end

-- own_time: the µs at which a job with send_at `at` goes to its backlog. Jobs for the same moment follow each other by
-- one µs in the order in which they were accepted: `later` has no other order for them.
local function own_time(at)
  local same, moment = '@same_time', text(at)
  local free = math.max(at, tonumber(redis.call('ZSCORE', same, moment) or 0))
  redis.call('ZADD', same, text(free + 1), moment)
  return free
end

-- write_job: writes the job's hash: RQ's fields and ours. at: its own time, or nil.
local function write_job(key, lane, at, job)
  local fields = {'created_at', stamp, 'enqueued_at', stamp, 'origin', lane, 'data', job.data, 'meta', job.meta,
    'description', 'notifier.deliver', 'status', at and 'scheduled' or 'queued'}
  local function put(name, value) fields[#fields + 1], fields[#fields + 2] = name, value end
  if job.targets ~= '' then put('push_targets', job.targets) end
  if job.tagged ~= '' then put('push_tagged', '1') end
  if job.dedupe ~= '' then put('push_dedupe', job.dedupe) end
  if job.expires_in_us ~= '' then put('push_deadline', (at or now) + tonumber(job.expires_in_us)) end
  if ARGV[ENQUEUE.keeps_history] ~= '' then put('push_history', at and now_text .. ' 0 t' or now_text) end
  redis.call('HSET', key, unpack(fields))
end

-- send_on: puts the job where it waits: in another's place, in `later` for its own time, or at the end of a queue.
local function send_on(id, lane, at, how)
  if how == 'collapse' then return take_place(now, id) end
  if not at then return redis.call('RPUSH', '@rq:queue:' .. lane, id) end
  local goes = own_time(at)
  redis.call('ZADD', '@rq:scheduled:' .. lane, seconds(goes), id)
  redis.call('ZADD', '@later', text(goes), id)
  note_due(goes)
end

-- count_accepted: counts it in the totals, in this minute's numbers, and in a recording for `notifier preview`.
local function count_accepted(lane, at, job)
  if not seen[lane] then
    seen[lane] = true
    redis.call('SADD', '@rq:queues', '@rq:queue:' .. lane)
  end
  redis.call('HINCRBY', '@stats', 'accepted', '1')
  local field = 'a|' .. (job.category == '' and 'default' or job.category)
  numbers[field] = (numbers[field] or 0) + 1
  if not recording then return end
  redis.call('XADD', '@trace', '*', 'at', at or now, 'meta', job.meta, 'expires', job.expires_in_us)
end

local function accept(job)
  local id, lane, dedupe, category = job.id, job.lane, job.dedupe, job.category
  -- This may be the same id, if the call is repeated. A job that ends unsent frees its key.
  local earlier = dedupe ~= '' and redis.call('GET', '@dedupe:' .. dedupe)
  if earlier then return earlier end
  local key = job_key(id)
  -- A repeated call: the producer's connection may have broken before the reply.
  local again = redis.call('EXISTS', key) == 1 or redis.call('ZSCORE', '@delivered', id)
  local at, how, counted = tonumber(job.send_at_us), 'queue', nil
  if at and at <= now then at = nil end
  if job.overflow ~= '' and not again then
    how, counted = make_room(now, job, in_all, at)
    if not how then return counted end
  end
  if again then return id end
  if category ~= '' and how == 'queue' and not at then lane = lane_of(category, lane, id) end
  if dedupe ~= '' then redis.call('SET', '@dedupe:' .. dedupe, id, 'PX', dedupe_for) end
  write_job(key, lane, at, job)
  if job.tagged ~= '' then note_tagged(job.tagged, id, at or now, now) end
  send_on(id, lane, at, how)
  if how == 'queue' and counted then note_waiting(counted, id, key, at or now, now) end
  count_accepted(lane, at, job)
  return id
end

for at = ENQUEUE.n, #ARGV - 1, JOB.n do
  reply[#reply + 1] = accept({id = ARGV[at + JOB.id], lane = ARGV[at + JOB.lane], data = ARGV[at + JOB.data],
    meta = ARGV[at + JOB.meta], expires_in_us = ARGV[at + JOB.expires_in_us], send_at_us = ARGV[at + JOB.send_at_us],
    dedupe = ARGV[at + JOB.dedupe], targets = ARGV[at + JOB.targets], overflow = ARGV[at + JOB.overflow],
    max_waiting = ARGV[at + JOB.max_waiting], category = ARGV[at + JOB.category], tagged = ARGV[at + JOB.tagged]})
end
add_to_minute(now, numbers)
return reply
