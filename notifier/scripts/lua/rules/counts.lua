--! on_demand MANY MAX_FOLDED is_counting counted_nth fold
--! needs text
-- What windows count in buckets. A user's sends stand as themselves, in their sorted set, for as long as an exact
-- rule can ask for one (policy.exact_us). Older ones, which are later than none of those, are folded into
--   @counts:{user}[:<category>]  zset µs -> how many, in all, up to then
-- one entry for each bucket of time in which there were any: the time of its latest send. So a bucketed window takes a
-- send to be as late as the latest of its bucket, and one look-up finds the n-th latest however large its limit is. The
-- first entry has lapsed: what it counted is known to be over. @counting is there while anybody may have
-- counts: rules without buckets ask them too, because a rule may have had some before it was changed.
local COUNTING = '@counting'
local MANY = 8 -- fewer sends than this are not set aside
local MAX_FOLDED = 100 -- so many at once, no more

local function is_counting() return redis.call('EXISTS', COUNTING) == 1 end

-- beside: the key of another name for whom a key @sent:… is.
local function beside(sent, name) return name .. string.sub(sent, #'@sent' + 1) end

-- counted_nth: when the n-th latest of the counted was, or nil.
local function counted_nth(sent, n)
  local key = beside(sent, '@counts')
  local total = tonumber(redis.call('ZREVRANGE', key, '0', '0', 'WITHSCORES')[2] or 0)
  return n <= total and redis.call('ZRANGEBYSCORE', key, text(total - n + 1), '+inf', 'LIMIT', 0, 1)[1] or nil
end

-- fold: counts sends, the oldest of a set, {permit, µs, …}.
local function fold(sent, policy, sends, now)
  local key, precision, horizon = beside(sent, '@counts'), policy.bucket_us, policy.horizon
  local last = redis.call('ZREVRANGE', key, '0', '0', 'WITHSCORES')
  local latest, total = tonumber(last[1] or 0), tonumber(last[2] or 0)
  local adds, n = {total, text(latest)}, 2
  for i = 2, #sends, 2 do
    local at = math.max(latest, tonumber(sends[i])) -- a clock may have been set back
    if math.floor(at / precision) ~= math.floor(latest / precision) then n = n + 2 end
    latest, total = at, total + 1
    adds[n - 1], adds[n] = total, text(at)
  end
  if last[1] and adds[2] ~= last[1] then redis.call('ZREM', key, last[1]) end
  redis.call('ZADD', key, unpack(adds))
  local front, lapsed = redis.call('ZRANGE', key, 0, 2 * MANY), 0
  while front[lapsed + 2] and tonumber(front[lapsed + 2]) <= now - horizon do lapsed = lapsed + 1 end
  if lapsed > 0 then redis.call('ZREMRANGEBYRANK', key, 0, lapsed - 1) end
  local lasts = math.ceil((math.max(latest, now) - now + horizon) / 1000) + 1
  redis.call('PEXPIRE', key, text(lasts))
  if redis.call('PTTL', COUNTING) < lasts then redis.call('SET', COUNTING, '1', 'PX', text(2 * lasts)) end
end
