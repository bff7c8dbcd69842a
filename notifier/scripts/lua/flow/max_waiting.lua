--! on_demand make_room note_waiting take_place
--! needs arriving_key backlog_key backlogs_key DIGEST end_unsent ends enter_backlog gather_for HIGH is_untried
--! needs job_key LANES last_for leave_backlog note_candidate note_due same_waiting supersede tally text waits
-- How many may wait, for *enqueue*. It counts existing entries, not a running total: for all users the queues and RQ's
-- scheduled jobs; for one user the backlogs, and @arriving before them. Jobs in flight do not wait.
local NORMAL = text(-HIGH / 2) -- lower orders are of high priority: these are dropped only if no others wait
local MAX_GONE, MAX_OLDEST = 50, 10
local looked_through = {}

local function count_in_all()
  local n = 0
  for _, lane in ipairs(LANES) do
    n = n + redis.call('LLEN', '@rq:queue:' .. lane) + redis.call('ZCARD', '@rq:scheduled:' .. lane)
  end
  return n
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

-- is_arriving: whether a job of the user is still in a queue. One that takes a place now would overtake it.
local function is_arriving(now, user)
  forget_gone(user)
  return redis.call('ZCOUNT', arriving_key(user), '-inf', text(now)) > 0
end

-- beyond: the limit that one more would exceed, 'user' or 'all', how many wait, and how many may; or nil.
local function beyond(user, of_user, in_all)
  if of_user > 0 and count_of_user(user) >= of_user then
    forget_gone(user)
    local waiting = count_of_user(user)
    if waiting >= of_user then return 'user', waiting, of_user end
  end
  if in_all and count_in_all() >= in_all then return 'all', count_in_all(), in_all end
end

-- replaced_by: the waiting job whose place a new job would take in *pull*, by its collapse id or as a digest; and that
-- id. Or nil.
local function replaced_by(user, category, collapse_id)
  local digest = same_waiting(user, category, DIGEST)
  if digest then return digest, DIGEST end
  return collapse_id and same_waiting(user, category, collapse_id), collapse_id
end

-- drop_oldest: ends the oldest job of the backlog that no worker has tried. Returns whether there was one. It drops no
-- digest, as all jobs that the digest stands for would go with it.
local function drop_oldest(now, user, category)
  local backlog = backlog_key(user, category)
  local ids = redis.call('ZRANGEBYSCORE', backlog, NORMAL, '+inf', 'LIMIT', 0, MAX_OLDEST)
  if #ids == 0 then ids = redis.call('ZRANGE', backlog, 0, MAX_OLDEST - 1) end
  for _, id in ipairs(ids) do
    local job = redis.call('HMGET', job_key(id), 'origin', 'status', 'push_collapse')
    if job[1] and job[2] == 'scheduled' and job[3] ~= DIGEST and is_untried(id) then
      leave_backlog(now, user, category, id, job[3])
      end_unsent(now, id, job[1], 'dropped', 'push_reason', 'overflow')
      tally('dropped', now, category .. '|')
      waits.write()
      return true
    end
  end
  return false
end

-- make_room: for a job with a limit. Returns 'collapse' if it is to take the place of a waiting job, else 'queue', and
-- the user whose arrival is noted, or false; or nil and the refusal. job: its meta, its overflow, and how many of its
-- user may wait, or ''. in_all: how many may wait for all users, or nil. at: its own time; then it takes no place.
local function make_room(now, job, in_all, at)
  ends.read(ARGV[ENQUEUE.keep])
  local read, overflow, of_user = cjson.decode(job.meta), job.overflow, tonumber(job.max_waiting) or 0
  local user, category, same = read.user, read.category or 'default', nil
  local which, waiting, most = beyond(user, of_user, in_all)
  if which then
    if overflow ~= 'reject' and not at and not is_arriving(now, user) then
      same = replaced_by(user, category, read.collapse_id)
    end
    if not same and not (overflow == 'drop_oldest' and drop_oldest(now, user, category)) then
      tally('refused')
      return nil, '!' .. which .. ' ' .. waiting .. ' ' .. most
    end
  end
  return same and 'collapse' or 'queue', (of_user > 0 or overflow ~= 'reject') and user
end

-- take_place: moves a job at once to the place of the one that it replaces.
local function take_place(now, id)
  local function join(_, user, category, collapse_id, order)
    local old, of = replaced_by(user, category, collapse_id)
    note_candidate(user, category, of, id)
    if of == DIGEST then gather_for(id, old, math.huge) end -- *pull* checks at the next job whether it is complete
    return supersede(now, user, category, old, id, order)
  end
  local _, user, lane, is_new = enter_backlog(now, id, join)
  if is_new then redis.call('ZADD', '@wakeups:' .. lane, 'LT', text(now), user) end
  note_due(now, lane)
  waits.write()
end

-- note_waiting: notes an arrival of the user. at: the µs of its own time, or now: so jobs of next week are behind those
-- that *forget_gone* checks.
local function note_waiting(user, id, key, at, now)
  redis.call('HSET', key, 'push_arriving', 1)
  redis.call('ZADD', arriving_key(user), at, id)
  last_for(arriving_key(user), text(math.ceil((at - now) / 1000) + 2592000000))
end
