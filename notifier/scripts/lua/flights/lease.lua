--! exports read_job count_sends lease_job leased_job
--! needs gather is_empty job_key number record
-- Lease: a job that leaves its queue or backlog is in flight with a worker, under a permit, until the worker settles it
-- or dies.

-- read_job: the fields of a backlog's head that decide whether it may go. Returns nil and its origin if RQ's tools have
-- deleted or cancelled the job; *sweep* ends it.
local function read_job(id)
  local data, origin, status, deadline, attempts, crashes, answered, targets, collapse, count, refusals, noted,
    not_before =
    unpack(redis.call('HMGET', job_key(id), 'data', 'origin', 'status', 'push_deadline', 'push_attempts',
      'push_crashes', 'push_answered', 'push_targets', 'push_collapse', 'push_count', 'push_refusals', 'push_history',
      'push_wait'))
  if not origin or status == 'canceled' then return nil, origin end
  return {id = id, data = data or '', origin = origin, status = status, deadline = deadline and number(deadline),
    attempts = attempts and number(attempts), crashes = crashes and number(crashes), answered = answered,
    targets = targets, collapse = collapse, count = count and number(count), refusals = refusals and number(refusals),
    noted = noted, not_before = not_before and number(not_before)}
end

-- count_sends: counts the sends of `permit` for the user and the category. Until *settle* writes the true time, a send
-- is dated at the end of its lease, the latest moment at which it can happen.
local function count_sends(look, user, backlog, permit)
  local policy, own, at = user.policy, backlog.policy, look.now + look.lease_us
  if not is_empty(policy) then
    record(user.sent, policy, permit, at, look.until_text, look.now, look.trim, backlog.cost)
  end
  if not is_empty(own) then
    record(backlog.sent, own, permit, at, look.until_text, look.now, look.trim, backlog.cost)
  end
end

-- lease_job: leases a job to the caller. Further fields of its hash may follow as arguments. look.leases: {id: true} of
-- the jobs whose leases are written at the end.
local function lease_job(look, id, permit, origin, ...)
  look.leases[id] = true
  -- RQ fails jobs whose entry in its started registry has expired. Ours never expires: our own lease ends instead.
  gather('ZADD', '@rq:wip:' .. origin, '+inf', id .. ':' .. permit)
  gather('ZADD', '@leases', look.until_text, id)
  redis.call('HSET', job_key(id), 'status', 'started', 'push_permit', permit, 'worker_name', look.worker, ...)
end

-- leased_job: a LEASED of records.py for the worker. deadline, since: µs, or nil. rare: {place: value} of the other
-- fields, or nil for a new job.
local function leased_job(id, permit, user, category, data, deadline, now, since, rare)
  local leased = {id, permit, user, category, data, deadline and deadline - now or false, since}
  if not rare then return leased end
  for n = LEASED.since_us, LEASED.n do leased[n] = leased[n] or false end
  for place, value in pairs(rare) do leased[place] = value end
  return leased
end
