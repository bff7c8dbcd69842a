--! exports unfold is_empty nth next_for pace record
-- A policy is an array of numbers: gap_us, horizon_us, then limit and interval_us of each window. Rules of more kinds
-- stand in an object at its end, which *unfold* takes off and turns into fields of the array:
--   exact_us   µs that a send is kept as itself, whatever else counts it
--   bucket_us  how wide a bucket is, of the windows that count what is older in buckets, see counts.lua
--   quiet, calendar   quiet hours and calendar windows, see quiet_hours.lua
--   burst      {capacity, every µs}: a token bucket, see burst.lua
-- The sends it judges are a sorted set, permit -> µs: in the future while in flight, the settling time after. A send of
-- cost n stands as n members: the permit, permit#2, …
local BURST = -2

-- unfold: a policy as it is used here. counting: whether anybody may have counts.
local function unfold(policy, counting)
  if type(policy[#policy]) == 'table' then
    for name, rule in pairs(table.remove(policy)) do policy[name] = rule end
  end
  policy.counted = counting or policy.bucket_us ~= nil
  return policy
end

local function is_empty(policy) return policy[2] == 0 and not policy.quiet end

-- nth: when the n-th latest send was, or nil. count: how many stand in the set.
local function nth(sent, policy, n, count)
  if n <= count then return redis.call('ZREVRANGE', sent, n - 1, n - 1, 'WITHSCORES')[2] end
  return policy.counted and counted_nth(sent, n - count)
end

-- next_for: the first µs at which `cost` more sends fit `policy`, and the rule that decides it:
-- 0 the gap, n the n-th window, BURST, -1 none. One look-up by rank for each rule, however long the window is.
local function next_for(sent, policy, cost)
  local at, rule = 0, -1
  if is_empty(policy) then return at, rule end
  local count = redis.call('ZCARD', sent)
  if count == 0 and not policy.counted and not policy.burst then return at, rule end
  if policy[1] > 0 then
    local last = nth(sent, policy, 1, count)
    if last then at, rule = last + policy[1], 0 end
  end
  for i = 3, #policy, 2 do
    -- `cost` more fit into (t - interval, t] once the (limit - cost + 1)-th latest send has left it.
    -- What costs more than a limit, as the rules have changed, is let go when nothing else counts.
    local leaves = nth(sent, policy, math.max(1, policy[i] - cost + 1), count)
    if leaves and leaves + policy[i + 1] > at then at, rule = leaves + policy[i + 1], (i - 1) / 2 end
  end
  if policy.burst then
    local opens = burst_next(sent, policy.burst, math.min(cost, policy.burst[1]))
    if opens > at then at, rule = opens, BURST end
  end
  return at, rule
end

-- pace: µs between two sends of a user who always has something waiting, in the long run.
local function pace(policy)
  local most = policy[1]
  for i = 3, #policy, 2 do most = math.max(most, policy[i + 1] / policy[i]) end
  return policy.burst and math.max(most, policy.burst[2]) or most
end

-- set_aside: takes the sends out of the set that no rule can ask for as themselves, into what counts them in another
-- way.
local function set_aside(sent, policy, now, cost)
  local until_text = text(now - policy.exact_us)
  local old = redis.call('ZRANGEBYSCORE', sent, '-inf', until_text, 'WITHSCORES', 'LIMIT', 0, MAX_FOLDED)
  local leaving = #old >= 2 * MANY
  if policy.burst then keep_burst(sent, policy, now, cost, leaving) end
  if not leaving then return end
  if policy.bucket_us then fold(sent, policy, old, now) end
  redis.call('ZREMRANGEBYRANK', sent, 0, #old / 2 - 1)
end

-- lasts: for how many ms a set is kept whose latest send is `ahead` µs from now; as text. All sends of a call under one
-- policy are as far ahead, so it is written once.
local function lasts(policy, ahead)
  if policy.ahead ~= ahead then
    policy.ahead, policy.lasts = ahead, text(math.ceil((ahead + policy[2]) / 1000) + 1)
  end
  return policy.lasts
end

-- record: a send at µs `at`, `stamp` in text; the set lives as long as a rule can still ask for it. `trim` drops the
-- lapsed: not needed for what the rules answer, only for memory, so now and then is enough.
local function record(sent, policy, permit, at, stamp, now, trim, cost)
  if policy.exact_us then set_aside(sent, policy, now, cost)
  elseif trim then redis.call('ZREMRANGEBYSCORE', sent, '-inf', text(now - policy[2])) end
  redis.call('ZADD', sent, stamp, permit)
  for n = 2, cost do redis.call('ZADD', sent, stamp, permit .. '#' .. n) end
  redis.call('PEXPIRE', sent, lasts(policy, at - now))
  if policy.burst then replay_on(sent, policy.burst, at, cost) end
end
