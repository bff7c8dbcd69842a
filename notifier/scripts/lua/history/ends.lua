--! exports ends
--! needs history job_key text
-- What is left of each end: an event, and a record of the history. Who wants them says so beside keep_failed,
-- '<s> <ms> <ms> <n>' in place of '<s>': then each end of a notification is an entry of the stream @events, as
-- old as the first ms at most, and a record of its user as history.lua says, kept for the second ms, n at most. With 0
-- nothing is written or asked for.
local ends = {}
local PLAIN = {dropped = true, superseded = true} -- whose detail no provider wrote

-- ends.read: the s of keep_failed.
function ends.read(keep)
  local whole, events, records, max = string.match(keep, '^(%d+) (%d+) (%d+) (%d+)$')
  ends.keep = events and events ~= '0' and tonumber(events)
  if records and records ~= '0' then history.keep, history.max = tonumber(records), tonumber(max) end
  return tonumber(whole or keep)
end

-- told_of: of a job that waits, what its end is told with.
local function told_of(id)
  local job = redis.call('HMGET', job_key(id), 'meta', 'push_accepted', 'push_held')
  local ok, meta = pcall(cjson.decode, job[1] or '')
  local category = ok and type(meta) == 'table' and type(meta.user) == 'string' and (meta.category or 'default')
  return {meta = job[1], user = category and meta.user, category = tostring(category), accepted = job[2],
    held = job[3]}
end

-- ends.tell: a notification ended as `outcome`. detail: why, or by which job. told: {user, category, accepted, held,
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
