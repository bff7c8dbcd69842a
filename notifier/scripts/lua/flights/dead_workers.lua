--! on_demand take_over_dead
--! needs claim_key counted_of ends forget history is_text job_key leased_job look_again mark_orphan number release
--! needs stay_in_flight steering tally text write_lasting
-- Jobs of dead workers. A job that may have been sent becomes an orphan, see orphans.lua. look: of *pull*.
local SUSPECT = 2
-- put_back: puts a job back of which the dead worker sent nothing. meta: its user and category, whose claim lets it go;
-- or nil. is_read: whether the worker had only read the job.
local function put_back(look, id, key, job, meta, is_read)
  redis.call('ZREM', '@leases', id)
  if job.permit then redis.call('ZREM', '@rq:wip:' .. job.origin, id .. ':' .. job.permit) end
  if job.status == 'queued' and job.order and not is_read then -- somebody enqueued it again while it was in flight
    ends.tell(look.now, id, 'superseded')
    forget(key)
    tally('superseded')
    if job.again then redis.call('LPUSH', '@rq:queue:' .. job.origin, id) end
    return
  end
  redis.call('HDEL', key, 'push_permit')
  if meta then
    release({[claim_key(meta.user, meta.category)] = 1}, look.now)
    look_again(look.now, meta.user)
  end
  look.place(id)
end

-- take_over: leases a dead worker's job to the caller as an orphan, or puts it back.
local function take_over(look, id)
  local key = job_key(id)
  local read = redis.call('HMGET', key, 'origin', 'push_permit', 'push_crashes', 'push_begun', 'status', 'push_order',
    'push_again', 'meta', 'push_orphan', 'push_targets', 'push_answered', 'data', 'push_attempts', 'push_history',
    'push_counted')
  local job = {origin = read[1], permit = read[2], status = read[5], order = read[6], again = read[7]}
  if not job.origin then return redis.call('ZREM', '@leases', id) end
  -- Any job that a dead worker had in flight may have killed it. After two deaths a job is a suspect: workers send it
  -- alone from then on, and a further death counts against it only if the worker had begun to send it.
  local crashes, is_orphan = number(read[3]) or 0, read[9]
  if not is_orphan and (crashes < SUSPECT or read[4] == job.permit) then
    crashes = crashes + 1
    redis.call('HSET', key, 'push_crashes', crashes)
  end
  if not history.was_held(read[14]) then history.note(id, read[14], look.now - look.lease_us, 'f') end
  local counted = job.permit and counted_of(job.permit, read[15])
  -- A job that was only read, or for which no send was counted, was not sent: it is no orphan.
  local is_read = counted and counted.read
  local meta = counted and not is_read and is_text(id) and steering(read[8])
  if not meta or counted.nothing then return put_back(look, id, key, job, meta, is_read) end
  local lapses = tonumber(redis.call('ZSCORE', '@leases', id))
  mark_orphan(id, meta.user, meta.category)
  stay_in_flight(id, job.permit, counted, meta.user, meta.category, read[10], read[11], lapses,
    look.now + look.lease_us, look.until_text)
  look.orphans[#look.orphans + 1] = leased_job(id, job.permit, meta.user, meta.category, read[12] or '', nil, look.now,
    nil, {[LEASED.attempts] = number(read[13]), [LEASED.crashes] = crashes, [LEASED.answered] = read[11]})
end

-- take_over_dead: takes over jobs whose leases have ended, as many as the caller has room for. Returns how many.
local function take_over_dead(look)
  local lapsed = redis.call('ZRANGEBYSCORE', '@leases', '-inf', text(look.now), 'LIMIT', 0, look.most)
  for _, id in ipairs(lapsed) do take_over(look, id) end
  if #lapsed > 0 then write_lasting() end
  return #lapsed
end
