-- cancel_of: ends what is waiting for a user and is of one kind, a page at a time.
-- ARGV a CANCEL_OF, see records.py
-- returns {cursor to go on from in this place, '0' at its end; further places to look through after it, {job id that
--          was cancelled, …}, {job id that is too late, …}}
-- The places come in the order in which a job passes them, so that none that moves on meanwhile is missed: what RQ's
-- enqueue_in has left in its registry, where nothing else is looked for; what is in its queue, what waits for a time of
-- its own, what is in a backlog; what is in flight, which is too late. Then once more where that may have come back to,
-- as it is to be tried again.
--! needs backlog_key backlogs_key end_cancelled ends job_key LANES now_us tagged_key text waits
local now, user, kind = now_us(ARGV[CANCEL_OF.clock]), ARGV[CANCEL_OF.user], cjson.decode(ARGV[CANCEL_OF.kind])
local place, cursor, most = ARGV[CANCEL_OF.place], ARGV[CANCEL_OF.cursor], tonumber(ARGV[CANCEL_OF.max_jobs])
local is_delayed = place:find('@rq:scheduled:', 1, true) == 1
local OVERLAP = 50
local AFTER_QUEUES = {'@later', 'backlogs', '@leases', '@later', 'backlogs', '@leases'}
local cancelled, too_late = {}, {}
ends.read(ARGV[CANCEL_OF.keep])

-- some_delayed: whether RQ's registries hold more than what is ours, which may be very much, and is found elsewhere.
local function some_delayed()
  local more = -redis.call('ZCARD', '@later')
  for _, lane in ipairs(LANES) do more = more + redis.call('ZCARD', '@rq:scheduled:' .. lane) end
  for _, count in ipairs(redis.call('HVALS', '@waits')) do more = more - count end
  return more ~= 0
end

-- places_after: where to go on once this place is done.
local function places_after()
  local places = {}
  if place == 'tagged' then places[1] = tagged_key(user) end
  if place == 'all' then
    if some_delayed() then
      for _, lane in ipairs(LANES) do places[#places + 1] = '@rq:scheduled:' .. lane end
    end
    for _, lane in ipairs(LANES) do places[#places + 1] = '@rq:queue:' .. lane end
    for _, next_place in ipairs(AFTER_QUEUES) do places[#places + 1] = next_place end
  end
  if place == 'backlogs' then
    for _, category in ipairs(redis.call('HKEYS', backlogs_key(user))) do
      local is_backlog = category:sub(1, 1) ~= '#' and (not kind.category or kind.category == category)
      if is_backlog then places[#places + 1] = backlog_key(user, category) end
    end
  end
  return places
end

-- page: the ids at the cursor, and the next cursor. Of a list by how many stand behind it: what comes, and what is
-- taken, moves no place that was not looked at. What RQ takes out of the middle does, so pages overlap.
local function page()
  if not place:find(':', 1, true) then return {}, '0' end
  if place:find('@rq:queue:', 1, true) == 1 then
    local behind = tonumber(cursor)
    local ids = redis.call('LRANGE', place, -behind - most, -behind - 1)
    return ids, #ids == most and text(behind + most - math.min(OVERLAP, math.floor(most / 2))) or '0'
  end
  local found, ids = redis.call('ZSCAN', place, cursor, 'COUNT', most), {}
  for i = 1, #found[2], 2 do ids[#ids + 1] = found[2][i] end
  return ids, found[1]
end

local function has_tag(meta)
  if type(meta.tags) ~= 'table' then return false end
  for _, tag in ipairs(meta.tags) do
    if tag == kind.tag then return true end
  end
  return false
end

local function is_meant(text_of_meta)
  local ok, meta = pcall(cjson.decode, text_of_meta or '')
  return ok and type(meta) == 'table' and meta.user == user and (meta.category or not is_delayed)
    and (not kind.category or (meta.category or 'default') == kind.category)
    and (not kind.collapse_id or meta.collapse_id == kind.collapse_id) and (not kind.tag or has_tag(meta))
end

local function look_at(id)
  if is_delayed and redis.pcall('HEXISTS', job_key(id), 'push_order') ~= 0 then return end -- it stands elsewhere too
  local job = redis.pcall('HMGET', job_key(id), 'origin', 'meta', 'push_permit', 'status', 'push_rq_job')
  if not job.err and not job[1] and place == tagged_key(user) then redis.call('ZREM', place, id) end
  if job.err or not job[1] or job[5] or not is_meant(job[2]) then return end
  if job[3] then
    too_late[#too_late + 1] = id
  elseif job[4] == 'queued' or job[4] == 'scheduled' then
    local told = end_cancelled(now, id) == 'cancelled' and cancelled or too_late
    told[#told + 1] = id
  end
end

local ids, next_cursor = page()
for _, id in ipairs(ids) do look_at(id) end
waits.write()
return {next_cursor, places_after(), cancelled, too_late}
