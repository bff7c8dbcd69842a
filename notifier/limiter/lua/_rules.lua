-- A policy is an array of numbers: gap_us, horizon_us, then limit and interval_us of each window. Rules of more kinds stand
-- in an object at its end, which *unfold* takes off and turns into fields of the array:
--   e  µs that a send is kept as itself, whatever else counts it        t  {capacity, every µs}: a token bucket
--   b  {{interval, precision}, …}: of the windows, those that may count what is older in buckets
-- The sends it judges are a sorted set, permit -> µs: in the future while in flight, the settling time after.

local function unfold(policy)
  if type(policy[#policy]) == 'table' then
    for name, rule in pairs(table.remove(policy)) do policy[name] = rule end
  end
  return policy
end

local function is_empty(policy) return policy[1] == 0 and #policy == 2 and not policy.e end

-- next_for: the first µs at which `cost` more sends fit `policy`, and the rule that decides it:
-- 0 the gap, n the n-th window, -1 none. One look-up by rank for each rule, however long the window is.
local function next_for(sent, policy, cost)
  local at, rule = 0, -1
  if is_empty(policy) then return at, rule end
  local count = redis.call('ZCARD', sent)
  if count == 0 then return at, rule end
  if policy[1] > 0 then at, rule = redis.call('ZRANGE', sent, -1, -1, 'WITHSCORES')[2] + policy[1], 0 end
  for i = 3, #policy, 2 do
    -- `cost` more fit into (t - interval, t] once the (limit - cost + 1)-th latest send has left it.
    local rank = policy[i] - cost
    if count > rank then
      local leaves = redis.call('ZREVRANGE', sent, rank, rank, 'WITHSCORES')[2] + policy[i + 1]
      if leaves > at then at, rule = leaves, (i - 1) / 2 end
    end
  end
  return at, rule
end

-- pace: µs between two sends of a user who always has something waiting, in the long run.
local function pace(policy)
  local most = policy[1]
  for i = 3, #policy, 2 do most = math.max(most, policy[i + 1] / policy[i]) end
  return most
end

-- record: a send at µs `at`, `stamp` in text; the set lives as long as a rule can still ask for it. `trim` drops the lapsed: not
-- needed for what the rules answer, only for memory, so now and then is enough.
local function record(sent, policy, permit, at, stamp, now, trim)
  if trim then redis.call('ZREMRANGEBYSCORE', sent, '-inf', text(now - policy[2])) end
  redis.call('ZADD', sent, stamp, permit)
  redis.call('PEXPIRE', sent, text(math.ceil((at - now + policy[2]) / 1000) + 1))
end
