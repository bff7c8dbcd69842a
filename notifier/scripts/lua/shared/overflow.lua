-- max_waiting: how much may wait. A part of *enqueue*, whose now, keep and in_all it uses. Counted is what stands
-- somewhere, not what was once added up: in all the queues and RQ's scheduled jobs; of a user the backlogs, and
-- @arriving before them. What is in flight does not wait.
local LANES = {'urgent', 'default', 'bulk'}
-- Those of high priority lie below: 2^50 below, while each move to another shard takes 10^12 off every order.
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
    local job = redis.call('HMGET', job_key(id), 'origin', 'status', 'push_attempts', 'push_crashes', 'push_answered',
      'push_collapse')
    if job[1] and job[2] == 'scheduled' and not (job[3] or job[4] or job[5]) then
      leave_backlog(now, user, category, id, job[6])
      end_unsent(now, id, job[1], 'dropped', keep, 'push_reason', 'overflow')
      tally(user, 'dropped')
      if waiting_in_all then waiting_in_all = waiting_in_all - 1 end
      return true
    end
  end
  return false
end
