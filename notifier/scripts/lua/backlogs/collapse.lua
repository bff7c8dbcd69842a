--! on_demand DIGEST same_waiting note_candidate forget_candidate supersede gather_for
--! needs backlog_key collapse_key end_unsent is_background job_key LOWERED number tally text waits
-- Collapsing: a new job takes the place of the waiting job of its backlog with the same collapse id, which ends as
-- superseded. Both are candidates: jobs that no worker has had in flight. Other jobs replace none, and none replaces
-- them.
local DIGEST = '' -- the collapse id of all jobs of a category with a digest
-- s since the last candidate, longer than any window. Entries of jobs that RQ's tools deleted go with the key.
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

-- forget_candidate: a job stops being a candidate. collapse_id: its push_collapse.
local function forget_candidate(user, category, id, collapse_id)
  local key = collapse_key(user, category)
  if redis.call('HGET', key, collapse_id) == id then redis.call('HDEL', key, collapse_id) end
  redis.call('HDEL', job_key(id), 'push_collapse')
end

-- supersede: ends `old`, of *same_waiting*, in favour of `id`. Returns the order of `id`, which is the smaller of both;
-- the s at which `old` was expected to go, or nil; and whether `id` may go at another time, as its order or devices
-- differ.
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

-- gather_for: `id` takes over the digest of `old`, and gathers until the same time. Returns whether the digest is
-- complete, as it stands for `after` jobs: it gathers no more then, and the caller makes its user due.
local function gather_for(id, old, after)
  local full = old.count + 1 >= after
  if full or old.gather then redis.call('HSET', job_key(id), 'push_gather', full and '0' or text(old.gather)) end
  return full
end
