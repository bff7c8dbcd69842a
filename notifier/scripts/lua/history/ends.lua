--! exports ends
--! needs history job_key text
-- What is left of what ends, as callers say: '<s> <µs> <ms> <ms> <n>'. The undelivered are kept for the s, records of
-- the delivered for the µs. Each end of a notification is an entry of the stream @events, as old as the first ms at
-- most, and a record of its user as history.lua says, kept for the second ms, n at most. With 0 nothing is written.
-- failed: the s. delivered: the µs.
local ends = {}
local PLAIN = {dropped = true, superseded = true} -- whose detail no provider wrote

function ends.read(keep)
  local failed, delivered, events, records, max = string.match(keep, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  ends.failed, ends.delivered, ends.keep = failed, tonumber(delivered), events ~= '0' and tonumber(events)
  if records ~= '0' then history.keep, history.max = tonumber(records), tonumber(max) end
end

-- told_of: of a job that waits, what its end is told with.
local function told_of(id)
  local job = redis.call('HMGET', job_key(id), 'meta', 'push_history')
  local ok, meta = pcall(cjson.decode, job[1] or '')
  local category = ok and type(meta) == 'table' and type(meta.user) == 'string' and (meta.category or 'default')
  return {meta = job[1], user = category and meta.user, category = tostring(category), noted = job[2]}
end

-- ends.tell: a notification ended as `outcome`. detail: why, or by which job. told: {user, category, noted,
-- meta}; nil is as its hash has it, and so is meta.
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
