-- limit_any: asks the limiter of a namespace for several keys, each by rules of any kind; all in one step.
-- ARGV 1 clock  2 namespace  3 'take' | 'look' | 'add' (counts, and never refuses)
--      4 µs that the caller is ready to wait: the permit is then dated ahead, at the first moment the rules admit it
--      5 µs for which usage is kept, or '' for no usage
--      6 the policies, JSON array (see rules.lua)  7.. for each key: key, permit, cost, index of its policy (from 0)
-- returns as *limit*; the deciding rule may be BURST
--! include clock counts burst rules usage kept
local now, namespace, mode, timeout = now_us(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local counting = is_counting()
local policies, reply = {}, {now}
for i, policy in ipairs(cjson.decode(ARGV[6])) do policies[i] = unfold(policy, counting) end

-- in_window: how many sends a window counts at µs `at`, and when the first of them leaves it.
local function in_window(sent, policy, interval, at)
  local after = '(' .. text(at - interval)
  local count = redis.call('ZCOUNT', sent, after, '+inf')
  local first = redis.call('ZRANGEBYSCORE', sent, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if not policy.counted then return count, tonumber(first) end
  local key = beside(sent, '@counts')
  local total = tonumber(redis.call('ZREVRANGE', key, '0', '0')[1] or 0)
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

-- take_mark: what the key says of how long it keeps its sends, taken out: all else here are sends.
local function take_mark(sent)
  local mark = redis.call('ZRANGEBYSCORE', sent, '-inf', '-inf')[1]
  if mark then redis.call('ZREM', sent, mark) end
  return mark
end

local function take(sent, permit, cost, policy, at, horizon)
  local exact = policy.exact_us
  if horizon > policy[2] and exact then policy.exact_us = math.huge end -- rules of others ask for longer than these do
  if not exact then redis.call('ZREMRANGEBYSCORE', sent, '-inf', text(now - horizon)) end
  record(sent, policy, struct.pack('>I8', at) .. permit, at, text(at), now, false, cost)
  policy.exact_us = exact
end

local function ask(key, permit, cost, policy)
  local sent, at, rule = keys_key(namespace, key), 0, -1
  local mark, till, new = take_mark(sent)
  if mode ~= 'add' then at, rule = next_for(sent, policy, cost) end
  at = math.max(at, now)
  local admitted = at - now <= timeout
  if admitted and mode ~= 'look' and not is_empty(policy) then
    local horizon
    horizon, till, new = keep(mark, policy[2], now, at)
    take(sent, permit, cost, policy, at, horizon)
    new = new or mark
    if policy.bucket_us then new = 'c' .. string.sub(new, 2) end
  elseif mark then
    till, new = struct.unpack('>I8', mark, 2), mark
  end
  local remaining, more, narrowest = room(sent, policy, at)
  if new then
    redis.call('ZADD', sent, '-inf', new)
    redis.call('PEXPIRE', sent, text(math.max(1, math.ceil((till - now) / 1000) + 1)))
  end
  if ARGV[5] ~= '' and mode ~= 'look' then note_usage(namespace, key, cost, admitted, now, tonumber(ARGV[5])) end
  return at - now, rule, remaining, more, narrowest
end

for i = 7, #ARGV, 4 do
  local left, rule, remaining, more, narrowest =
    ask(ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), policies[ARGV[i + 3] + 1])
  for _, number in ipairs({left, rule, remaining, more, narrowest}) do reply[#reply + 1] = number end
end
return reply
