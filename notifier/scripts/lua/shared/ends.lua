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
  if history.keep and told.user then
    history.write(now, id, outcome, PLAIN[outcome] and detail or '', told)
  end
  if not ends.keep then return end
  local oldest = text(math.max(0, math.floor(now / 1000) - ends.keep))
  redis.call('XADD', '@events', 'MINID', '~', oldest, '*', 'job_id', id, 'outcome', outcome,
    'detail', detail or '', 'meta', told.meta or redis.call('HGET', job_key(id), 'meta') or '')
  redis.call('PEXPIRE', '@events', text(ends.keep))
end

local MAX_OLD = 10 -- taken out of RQ's registry with each that ends: it shrinks, and no call is long

-- leave_backlog: takes a job that no worker holds out of its user's backlog. Returns whether it stood there.
-- collapse_id: its push_collapse.
local function leave_backlog(now, user, category, id, collapse_id)
  local backlog = backlog_key(user, category)
  local place = redis.call('ZRANK', backlog, id)
  if not place then return false end
  redis.call('ZREM', backlog, id)
  redis.call('ZREM', '@expiring', id)
  if collapse_id then forget_candidate(user, category, id, collapse_id) end
  -- Who stood behind the head may go before it: by another route, to another device, by the clock of another zone.
  local lane = place == 0 and redis.call('HGET', backlogs_key(user), category)
  if lane and redis.call('ZADD', '@gates:' .. lane, 'LT', 'CH', text(now), user) == 1 then note_due(now, lane) end
  return true
end

-- end_unsent: ends under `word` what is in no backlog and in no flight. The rest: further fields of its hash, and their
-- values. One that is queued stays in its list, which can be long: *pull* passes over it.
local function end_unsent(now, id, origin, word, keep, ...)
  local key, whole = job_key(id), math.floor(now / 1000000)
  redis.call('ZREM', '@later', id) -- first, as it takes no memory: a full Redis lets a script that has written go on
  ends.tell(now, id, word, select(2, ...))
  redis.call('ZREM', '@rq:scheduled:' .. origin, id)
  redis.call('HDEL', key, 'push_order')
  redis.call('HSET', key, 'status', 'canceled', 'push_outcome', word, ...)
  redis.call('EXPIRE', key, keep)
  local canceled = '@rq:canceled:' .. origin
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', canceled, '-inf', whole, 'LIMIT', 0, MAX_OLD)) do
    if redis.call('EXISTS', job_key(old)) == 0 then redis.call('ZREM', canceled, old) end
  end
  -- Until when it is kept, as RQ counts in its failed registry. Its own cancel puts now there: so *sweep* finds those.
  redis.call('ZADD', canceled, whole + keep, id)
end

-- tally: counts what became of a notification. user: nil where its meta names none.
local function tally(user, word)
  redis.call('HINCRBY', '@stats', word, '1')
  if not user then return end
  redis.call('HINCRBY', '@usage:{' .. user .. '}', word, '1')
  redis.call('EXPIRE', '@usage:{' .. user .. '}', '2592000')
end
