--! on_demand take_over_dead
--! needs claim_key counted_of ends forget history is_text job_key leased_job look_again mark_orphan number release
--! needs stay_in_flight steering tally text write_lasting
-- What dead workers had in flight. What may have been sent is an orphan, see orphans.lua. look: of *pull*.
local SUSPECT = 2
-- put_back: what was in flight with a dead worker, and of which nothing was sent, goes back at once. meta: its user and
-- category, of whose claim it is none any more; or nil. is_read: it was only read.
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

-- take_over: what a dead worker had in flight is in flight with the caller now, as an orphan, see orphans.lua.
local function take_over(look, id)
  local key = job_key(id)
  local read = redis.call('HMGET', key, 'origin', 'push_permit', 'push_crashes', 'push_begun', 'status', 'push_order',
    'push_again', 'meta', 'push_orphan', 'push_targets', 'push_answered', 'data', 'push_attempts', 'push_history',
    'push_counted')
  local job = {origin = read[1], permit = read[2], status = read[5], order = read[6], again = read[7]}
  if not job.origin then return redis.call('ZREM', '@leases', id) end
  -- A worker that dies takes along all that it held, and any of it may be to blame. A job whose workers died twice is a
  -- suspect: from then on it is begun alone, and a death counts against it only if it had been begun.
  local crashes, is_orphan = number(read[3]) or 0, read[9]
  if not is_orphan and (crashes < SUSPECT or read[4] == job.permit) then
    crashes = crashes + 1
    redis.call('HSET', key, 'push_crashes', crashes)
  end
  if not history.was_held(read[14]) then history.note(id, read[14], look.now - look.lease_us, 'f') end
  local counted = job.permit and counted_of(job.permit, read[15])
  -- What was only read, or counted as no send, was not sent: it is no orphan.
  local is_read = counted and counted.read
  local meta = counted and not is_read and is_text(id) and steering(read[8])
  if not meta or counted.nothing then return put_back(look, id, key, job, meta, is_read) end
  local lapses = tonumber(redis.call('ZSCORE', '@leases', id))
  mark_orphan(id, meta.user, meta.category)
  stay_in_flight(id, job.permit, counted, meta.user, meta.category, read[10], read[11], lapses,
    look.now + look.lease_us, look.until_text)
  look.orphans[#look.orphans + 1] = leased_job(id, job.permit, meta.user, meta.category, read[12] or '', nil, look.now,
    {[LEASED.attempts] = number(read[13]), [LEASED.crashes] = crashes, [LEASED.answered] = read[11]})
end

-- take_over_dead: as many of those whose leases have ended as the caller takes in all. Returns how many.
local function take_over_dead(look)
  local lapsed = redis.call('ZRANGEBYSCORE', '@leases', '-inf', text(look.now), 'LIMIT', 0, look.most)
  for _, id in ipairs(lapsed) do take_over(look, id) end
  if #lapsed > 0 then write_lasting() end
  return #lapsed
end
