-- limit_usage: reads the usage of a namespace's keys. First it settles their latest uses, see usage.lua.
-- ARGV 1 clock  2 namespace  3 key, or '' for all of the namespace
--      4 'count': 5 µs of the span that ends now
--      4 'usage' | 'series'
--      4 'top': 5 'total' | 'held' | 'last' | 'rate'  6 how many  7 '1' for the least first
--      4 'namespaces' (of all)
-- returns {-1} if more is left to settle: call again; else {now, …}: count: how many sends; usage and series: the hash,
--          flat; top: key, its total, last and held, and its sends of the last hour, for each;
--          namespaces: name, how many keys it knows, µs of a use
--! needs keys_key MINUTE NAMESPACES now_us rank_key read_sends settle_some settle_usage text use_key used_key
--! needs weight_after
local MAX_SETTLED, MAX_RATED = 200, 1000
local now, namespace, key, verb = now_us(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]

-- in_last_hour: the sends of a key. It names the minutes that it reads: the hash may hold those of a month.
local function in_last_hour(of)
  local minutes, sum, first = {}, 0, math.floor(now / MINUTE) - 59
  for minute = first, first + 59 do minutes[#minutes + 1] = text(minute) end
  for _, sends in ipairs(redis.call('HMGET', use_key(namespace, of), unpack(minutes))) do sum = sum + (sends or 0) end
  return sum
end

local function count(span)
  local s = read_sends(keys_key(namespace, key))
  return weight_after(s, now - math.min(span, s.horizon)) - weight_after(s, now)
end

-- by_rate: unites the ranks of the last hour, ten minutes each, into a key that soon expires. The hour begins inside
-- the oldest rank: with that, a score is the most that a key may have in the hour; without it, the least.
local function by_rate(least_first)
  local args, tens, united = {[8] = 'WEIGHTS'}, math.floor(now / (10 * MINUTE)), rank_key(namespace, 'rate')
  for i = 0, 6 do
    args[1 + i], args[9 + i] = rank_key(namespace, text(tens - i)), i == 6 and least_first and 0 or 1
  end
  redis.call('ZUNIONSTORE', united, 7, unpack(args, 1, 15))
  redis.call('PEXPIRE', united, 1000)
  return united
end

-- top: by rate, it reads keys until no other key can come before the ones found, and sorts them.
local function top(by, most, least_first)
  local rated, found, first, many = by == 'rate', {}, 0, most
  local ranks = rated and by_rate(least_first) or rank_key(namespace, by)
  local function is_before(a, b)
    if least_first then a, b = b, a end
    return a[5] > b[5] or a[5] == b[5] and a[1] > b[1]
  end
  repeat
    local part = redis.call(least_first and 'ZRANGE' or 'ZREVRANGE', ranks, first, first + many - 1, 'WITHSCORES')
    for i = 1, #part, 2 do
      local use, hour = redis.call('HMGET', use_key(namespace, part[i]), 'total', 'last', 'held'), in_last_hour(part[i])
      if hour > 0 or not rated then
        found[#found + 1] = {part[i], use[1] or '0', use[2] or '0', use[3] or '0', hour}
      end
    end
    if rated then table.sort(found, is_before) end
    first, many = first + many, 2 * many
    local last, bound = found[most], tonumber(part[#part])
  until not rated or #part < many or first > MAX_RATED
    or last and (last[5] == bound or (last[5] < bound) == least_first)
  return {now, unpack(found, 1, math.min(most, #found))}
end

local function namespaces()
  local found, reply = redis.call('ZREVRANGE', NAMESPACES, 0, -1, 'WITHSCORES'), {now}
  for i = 1, #found, 2 do
    settle_some(found[i], '+inf', MAX_SETTLED, now)
    reply[#reply + 1] = {found[i], redis.call('ZCARD', rank_key(found[i], 'last')), found[i + 1]}
  end
  return reply
end

if verb == 'namespaces' then return namespaces() end
if verb == 'count' then return {now, count(tonumber(ARGV[5]))} end
if key ~= '' then settle_usage(namespace, key, now)
elseif settle_some(namespace, '+inf', MAX_SETTLED, now) == MAX_SETTLED then return {-1} end
if verb == 'top' then return top(ARGV[5], tonumber(ARGV[6]), ARGV[7] == '1') end
return {now, redis.call('HGETALL', key == '' and used_key(namespace) or use_key(namespace, key))}
