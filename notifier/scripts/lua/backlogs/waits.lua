--! exports waits
--! needs backlog_key backlogs_key text
-- Waits: how many notifications in backlogs wait for which reason. Scripts count when they decide the reason, so
-- readers need not walk through the backlogs.
--   @waits  hash reason -> how many. The reason is as in history.lua, of a category's rule with ' <category>' behind;
--           'due': it may go; '?': not decided yet
--   #w:<category>  in @backlogs:{user}: the reason that was decided last for the backlog
local waits = {undecided = '?'}
local changed = {}

function waits.add(why, n) changed[why] = (changed[why] or 0) + n end

function waits.why(user, category)
  return redis.call('HGET', backlogs_key(user), '#w:' .. category) or waits.undecided
end

-- why_in: like *why*, from the fields that *read_backlogs* found.
function waits.why_in(fields, category) return fields['#w:' .. category] or waits.undecided end

-- decide: all jobs of a backlog wait for `why` from now on. backlog: {category, why: if it was read}.
function waits.decide(user, backlog, why)
  local before = backlog.why or waits.why(user, backlog.category)
  backlog.why = why
  if before == why then return end
  local n = redis.call('ZCARD', backlog_key(user, backlog.category))
  waits.add(before, -n)
  waits.add(why, n)
  redis.call('HSET', backlogs_key(user), '#w:' .. backlog.category, why)
end

-- write: writes the changed counts, once at the end of a call.
function waits.write()
  for why, n in pairs(changed) do
    if n ~= 0 and redis.call('HINCRBY', '@waits', why, text(n)) <= 0 then redis.call('HDEL', '@waits', why) end
  end
  changed = {}
end
