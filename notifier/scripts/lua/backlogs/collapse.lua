--! on_demand DIGEST same_waiting note_candidate forget_candidate supersede gather_for
--! needs backlog_key collapse_key end_unsent is_background job_key LOWERED number tally text waits
-- Collapsing: a candidate, which no worker has had, takes the place of the one with the same collapse id that waits in
-- the backlog; that one ends as superseded. What a worker has had replaces nothing, and nothing replaces it.
local DIGEST = '' -- the id of all of a category with a digest
-- In s since the last candidate, longer than a window: what jobs that RQ deleted leave there goes with it.
local COLLAPSE_LASTS = 34560000

-- same_waiting: the candidate that waits in the backlog under this collapse id, or nil.
local function same_waiting(user, category, collapse_id)
  local id = redis.call('HGET', collapse_key(user, category), collapse_id)
  local order = id and redis.call('ZSCORE', backlog_key(user, category), id)
  if not order then return nil end
  local job = redis.call('HMGET', job_key(id), 'origin', 'status', 'push_count', 'push_gather', 'push_targets')
  if not job[1] or job[2] == 'canceled' then return nil end
  return {id = id, order = order, origin = job[1], count = number(job[3]) or 1, gather = number(job[4]),
    targets = job[5]}
end

local function note_candidate(user, category, collapse_id, id)
  local key = collapse_key(user, category)
  redis.call('HSET', job_key(id), 'push_collapse', collapse_id)
  redis.call('HSET', key, collapse_id, id)
  redis.call('EXPIRE', key, COLLAPSE_LASTS)
end

-- forget_candidate: the job is none any more. collapse_id: its push_collapse.
local function forget_candidate(user, category, id, collapse_id)
  local key = collapse_key(user, category)
  if redis.call('HGET', key, collapse_id) == id then redis.call('HDEL', key, collapse_id) end
  redis.call('HDEL', job_key(id), 'push_collapse')
end

-- supersede: ends `old`, of *same_waiting*, for `id`. Returns the order of `id`, which is the smaller of both; the s at
-- which `old` was expected to go, or nil; and whether that may be wrong for `id`, as its order or its devices differ.
local function supersede(now, user, category, old, id, order)
  local expected = redis.call('ZSCORE', '@rq:scheduled:' .. old.origin, old.id)
  redis.call('ZREM', backlog_key(user, category), old.id)
  waits.add(waits.why(user, category), -1)
  end_unsent(now, old.id, old.origin, 'superseded', 'push_by', id)
  tally('superseded')
  redis.call('HSET', job_key(id), 'push_count', old.count + 1)
  local targets, own, place = redis.call('HGET', job_key(id), 'push_targets'), tonumber(order), tonumber(old.order)
  if place >= LOWERED / 2 and is_background(targets) then own = own + LOWERED end
  if own < place then return text(own), expected, true end
  return old.order, expected, targets ~= old.targets
end

-- gather_for: `id` takes over the digest from `old`, and gathers as long. Returns whether it stands for `after` now:
-- then it gathers no more, and the caller has its user looked at.
local function gather_for(id, old, after)
  local full = old.count + 1 >= after
  if full or old.gather then redis.call('HSET', job_key(id), 'push_gather', full and '0' or text(old.gather)) end
  return full
end
