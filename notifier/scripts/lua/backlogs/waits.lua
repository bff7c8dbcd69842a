--! exports waits
--! needs backlog_key backlogs_key text
-- Waits: how many notifications of backlogs wait for what. Counted when it is decided, so nobody has to walk to know.
--   @waits  hash why -> how many: as history.lua has it, of a category's rule with ' <category>' behind; 'due', it may
--           go; '?', not decided yet
--   #w:<category>  in @backlogs:{user}: why the backlog waits, as it was decided last
local waits = {}
local changed = {}
local UNDECIDED = '?'

function waits.add(why, n) changed[why] = (changed[why] or 0) + n end

function waits.why(user, category)
  return redis.call('HGET', backlogs_key(user), '#w:' .. category) or UNDECIDED
end

-- why_in: as *why*, of the fields of @backlogs:{user} that *read_backlogs* found.
function waits.why_in(fields, category) return fields['#w:' .. category] or UNDECIDED end

-- decide: from now on all of a backlog waits for `why`. backlog: {category, why: as it was read, if it was}.
function waits.decide(user, backlog, why)
  local before = backlog.why or waits.why(user, backlog.category)
  backlog.why = why
  if before == why then return end
  local n = redis.call('ZCARD', backlog_key(user, backlog.category))
  waits.add(before, -n)
  waits.add(why, n)
  redis.call('HSET', backlogs_key(user), '#w:' .. backlog.category, why)
end

-- write: what has changed, once at the end of a call.
function waits.write()
  for why, n in pairs(changed) do
    if n ~= 0 and redis.call('HINCRBY', '@waits', why, text(n)) <= 0 then redis.call('HDEL', '@waits', why) end
  end
  changed = {}
end
