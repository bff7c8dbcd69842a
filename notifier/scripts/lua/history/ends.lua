--! exports ends
--! needs history job_key text
-- How long ended notifications are kept. Callers say it as text, '<s> <µs> <ms> <ms> <n>': undelivered jobs for s
-- (ends.failed), delivered jobs for µs (ends.delivered), entries of the stream @events for the first ms, records of the
-- history (see history.lua) for the second ms, and at most n records of a user. 0 keeps nothing.
local ends = {}
local PLAIN = {dropped = true, superseded = true} -- outcomes whose detail was not written by a provider

function ends.read(keep)
  local failed, delivered, events, records, max = string.match(keep, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  ends.failed, ends.delivered, ends.keep = failed, tonumber(delivered), events ~= '0' and tonumber(events)
  if records ~= '0' then history.keep, history.max = tonumber(records), tonumber(max) end
end

-- told_of: `told` of *ends.tell* for a job that waits, read from its hash.
local function told_of(id)
  local job = redis.call('HMGET', job_key(id), 'meta', 'push_history')
  local ok, meta = pcall(cjson.decode, job[1] or '')
  local category = ok and type(meta) == 'table' and type(meta.user) == 'string' and (meta.category or 'default')
  return {meta = job[1], user = category and meta.user, category = tostring(category), noted = job[2]}
end

-- ends.tell: writes the event and the record of a notification that ended as `outcome`. detail: why, or the job that
-- superseded it. told: {user, category, noted, meta}; it, or meta, is read from the job's hash if it is nil.
function ends.tell(now, id, outcome, detail, told)
  if not (ends.keep or history.keep) then return end
  told = told or told_of(id)
  if history.keep and told.user then history.write(now, id, outcome, PLAIN[outcome] and detail or '', told) end
  if not ends.keep then return end
  local oldest = text(math.max(0, math.floor(now / 1000) - ends.keep))
  redis.call('XADD', '@events', 'MINID', '~', oldest, '*', 'job_id', id, 'outcome', outcome,
    'detail', detail or '', 'meta', told.meta or redis.call('HGET', job_key(id), 'meta') or '')
  redis.call('PEXPIRE', '@events', text(ends.keep))
end
