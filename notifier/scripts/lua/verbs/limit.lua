-- limit: asks the limiter of a namespace for several keys, each by its own rules; all in one step.
-- ARGV 1 clock  2 namespace  3 'take' | 'look' | 'add' (counts, and never refuses)
--      4 µs that the caller is ready to wait: the permit is then dated ahead, at the first moment the rules admit it
--      5 µs for which usage is kept, or '' for no usage
--      6 the policies, JSON array (see rules.lua)  7.. for each key: key, permit, cost, index of its policy (from 0)
-- returns {now, …, for each key {µs until the permit counts or, where there is none, until it would be admitted,
--          1 if it was admitted, the deciding rule (see rules.lua), remaining or -1, µs until there is more, or -1,
--          the number of the window with the least room or -1}}
--! include clock counts burst rules usage
local now, namespace, mode, patience = now_us(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local counting = is_counting()
local policies, reply = {}, {now}
for i, policy in ipairs(cjson.decode(ARGV[6])) do policies[i] = unfold(policy, counting) end

-- in_window: how many sends a window counts at µs `at`, and when the first of them leaves it.
local function in_window(sent, policy, interval, at)
  local after = '(' .. text(at - interval)
  local count = redis.call('ZCOUNT', sent, after, '+inf')
  local first = redis.call('ZRANGEBYSCORE', sent, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if not policy.counted then return count, tonumber(first) end
  local key = beside(sent, 'counts')
  local total = tonumber(redis.call('ZREVRANGE', key, 0, 0)[1] or 0)
  local gone = tonumber(redis.call('ZREVRANGEBYSCORE', key, text(at - interval), '-inf', 'LIMIT', 0, 1)[1] or 0)
  if total > gone then
    first = redis.call('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  end
  return count + total - gone, tonumber(first)
end

-- room: how many more the windows admit at µs `at`, when the narrowest has more, and its number.
local function room(sent, policy, at)
  local remaining, more_at, narrowest
  for i = 3, #policy, 2 do
    local count, first = in_window(sent, policy, policy[i + 1], at)
    local left = math.max(0, policy[i] - count)
    if not remaining or left < remaining then
      remaining, more_at, narrowest = left, first and first + policy[i + 1] or at, (i - 1) / 2
    end
  end
  return remaining or -1, more_at and math.max(0, more_at - now) or -1, narrowest or -1
end

local function ask(key, permit, cost, policy)
  local sent, at, rule = keys_key(namespace, key), 0, -1
  if mode ~= 'add' then at, rule = next_for(sent, policy, cost) end
  at = math.max(at, now)
  local admitted = at - now <= patience
  if admitted and mode ~= 'look' and not is_empty(policy) then
    -- Rules of other callers may ask for longer than these do.
    local left = redis.call('PTTL', sent)
    local longer = left > math.ceil((at - now + policy[2]) / 1000) + 1
    if longer and policy.e then policy.e = math.huge end
    record(sent, policy, permit, at, text(at), now, not longer, cost)
    if longer then redis.call('PEXPIRE', sent, left) end
  end
  if ARGV[5] ~= '' and mode ~= 'look' then note_usage(namespace, key, cost, admitted, now, tonumber(ARGV[5])) end
  return {at - now, admitted and 1 or 0, rule, room(sent, policy, at)}
end

for i = 7, #ARGV, 4 do
  reply[#reply + 1] = ask(ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), policies[ARGV[i + 3] + 1])
end
return reply
