--! on_demand MANY MAX_FOLDED is_counting counted_nth fold
--! needs text
-- Windows that count in buckets. The sorted set has each send of a user by itself for as long as an exact rule can ask
-- for it (policy.exact_us). Older sends are folded into
--   @counts:{user}[:<category>]  zset µs -> how many sends, in all, up to then
-- with one entry for each bucket of time that has sends: the time of its latest send. So a bucketed window takes each
-- send to be as late as the latest of its bucket, and one look-up finds the n-th latest send, however large the limit
-- is. The first entry has lapsed: it only says how many sends are over. @counting exists while any user may have
-- counts. Rules without buckets read the counts too, because a rule may have had buckets before it was changed.
local COUNTING = '@counting'
local MANY = 8 -- fewer sends than this are not set aside
local MAX_FOLDED = 100 -- at once

local function is_counting() return redis.call('EXISTS', COUNTING) == 1 end

-- beside: the key with another name, for the user and category of a key @sent:….
local function beside(sent, name) return name .. string.sub(sent, #'@sent' + 1) end

-- counted_nth: when the n-th latest of the folded sends was, or nil.
local function counted_nth(sent, n)
  local key = beside(sent, '@counts')
  local total = tonumber(redis.call('ZREVRANGE', key, '0', '0', 'WITHSCORES')[2] or 0)
  return n <= total and redis.call('ZRANGEBYSCORE', key, text(total - n + 1), '+inf', 'LIMIT', 0, 1)[1] or nil
end

-- fold: adds sends to the counts: the oldest of a set, {permit, µs, …}.
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
