--! exports is_empty nth next_for rule_mark record
--! needs burst_next counted_nth fold keep_burst last_for MANY MAX_FOLDED text
-- A policy, as notifier/scripts/rule_table.py writes it: {} without rules, else
--   gap        the least µs between two sends, or 0
--   windows    {limit, µs, limit, µs, …}
--   horizon    for how many µs a send matters to any rule
-- and, where they are needed,
--   exact_us   µs for which the set has each send by itself, see counts.lua
--   bucket_us  width of the buckets in which windows count older sends, see counts.lua
--   quiet, calendar   quiet hours and calendar windows, see quiet_hours.lua
--   burst      {capacity, every µs}: a token bucket, see burst.lua
-- A policy judges the sends in a sorted set, permit -> µs: in the future while in flight, the settling time after. A
-- send of cost n is n members: the permit, permit#2, …
local BURST = -2

local function is_empty(policy) return not policy.horizon end

-- may_be_counted: whether sends under a policy may be folded into counts. counted: any user has counts, see counts.lua.
local function may_be_counted(policy) return policy.counted or policy.bucket_us end

-- nth: when the n-th latest send was, or nil. count: the size of the set.
local function nth(sent, policy, n, count)
  if n <= count then
    local rank = n == 1 and '0' or text(n - 1)
    return redis.call('ZREVRANGE', sent, rank, rank, 'WITHSCORES')[2]
  end
  return may_be_counted(policy) and counted_nth(sent, n - count)
end

local is_new = {} -- the sets that this call has found empty
-- next_for: the first µs at which `policy` allows `cost` more sends, and the rule that decides it: 0 the gap, n the
-- n-th window, BURST, -1 none. It costs one look-up by rank for each rule, however long the window is.
-- now: see *keep_burst*.
local function next_for(sent, policy, cost, now)
  local at, rule = 0, -1
  if is_empty(policy) then return at, rule end
  local count, counted, gap, windows = redis.call('ZCARD', sent), may_be_counted(policy), policy.gap, policy.windows
  if count == 0 then is_new[sent] = true end
  if count == 0 and not counted and not policy.burst then return at, rule end
  if gap > 0 then
    local last = nth(sent, policy, 1, count)
    if last then at, rule = last + gap, 0 end
  end
  for i = 1, #windows, 2 do
    -- `cost` more fit into (t - interval, t] once the (limit - cost + 1)-th latest send has left it.
    -- A cost above the limit, possible after a change of rules, is allowed when no other send counts.
    local rank = windows[i] - cost
    if rank < 0 then rank = 0 end
    local leaves = (rank < count or counted) and nth(sent, policy, rank + 1, count)
    if leaves and leaves + windows[i + 1] > at then at, rule = leaves + windows[i + 1], (i + 1) / 2 end
  end
  if policy.burst then
    local opens = burst_next(sent, policy.burst, math.min(cost, policy.burst[1]), now)
    if opens > at then at, rule = opens, BURST end
  end
  return at, rule
end

-- rule_mark: the deciding rule as text: '<limit>/<µs>' a window, 'g<µs>' a gap, 't<limit>/<µs>' a burst. `rule_words`
-- of notifier/rules/marks.py reads it.
local function rule_mark(policy, rule)
  if rule == 0 then return 'g' .. text(policy.gap) end
  if rule == BURST then return 't' .. text(policy.burst[1]) .. '/' .. text(policy.burst[2]) end
  return text(policy.windows[2 * rule - 1]) .. '/' .. text(policy.windows[2 * rule])
end

-- set_aside: moves the sends out of the set into the counts that no exact rule can ask for any more.
local function set_aside(sent, policy, now)
  local until_text = text(now - policy.exact_us)
  local old = redis.call('ZRANGEBYSCORE', sent, '-inf', until_text, 'WITHSCORES', 'LIMIT', 0, MAX_FOLDED)
  if #old < 2 * MANY then return end
  fold(sent, policy, old, now)
  redis.call('ZREMRANGEBYRANK', sent, 0, #old / 2 - 1)
end

-- lasts: the ms in `us`, for which a set must be kept, and an eighth more, so that few of its next sends renew it. Both
-- are text. Nearly all sends of a call have the same policy and `us`, so the texts are made once.
local function lasts(policy, us)
  if policy.us ~= us then
    local ms = math.ceil(us / 1000) + 1
    policy.us, policy.lasts, policy.longer = us, text(ms), text(math.ceil(ms * 9 / 8))
  end
  return policy.lasts, policy.longer
end

local renewed = {} -- set -> ms for which this call keeps it
-- record: adds a send at µs `at` (`stamp` as text). The set lives at least as long as a rule can ask for this send.
-- `trim` deletes lapsed sends. That only saves memory, so callers ask for it now and then.
local function record(sent, policy, permit, at, stamp, now, trim, cost)
  if policy.burst then keep_burst(sent, policy.burst, now) end
  if policy.exact_us then set_aside(sent, policy, now)
  elseif trim then redis.call('ZREMRANGEBYSCORE', sent, '-inf', text(now - policy.horizon)) end
  redis.call('ZADD', sent, stamp, permit)
  if cost > 1 then
    for n = 2, cost do redis.call('ZADD', sent, stamp, permit .. '#' .. n) end
  end
  local ms, longer = lasts(policy, at - now + policy.horizon)
  if at <= now then longer = ms end -- *acquire*, which reads from the life of a set how long others need it
  if renewed[sent] == ms then return end
  renewed[sent] = ms
  if is_new[sent] then redis.call('PEXPIRE', sent, longer) else last_for(sent, ms, longer) end
  is_new[sent] = nil
end
